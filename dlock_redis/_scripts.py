"""The scripts: one for each verb, run by the server as one atomic step. :mod:`dlock_redis._wire` explains the fields.

Numbers are formatted with ``%.0f`` only: ``tostring`` and ``..`` round them. Everything that can fail comes before the first write, so an
error that the server answers means that nothing was written. The waiters' queue only ever delays a claim, by ``TURN_MS`` at most.
"""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, NamedTuple

from dlock_core.record import TOKEN_MAX
from dlock_redis._resp import packed

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN_MS = 50
PLACES_MAX = 512
# A place is the channel of a store, which has this length, and the ticket of one waiter.
CHANNEL_LENGTH = 22
# Before the place of a claim that waits in the server.
IN_SERVER = "!"
# 2024 and 2200: outside, the clock is wrong, and tokens made of it would not go back.
_CLOCK_S = (1704067200, 7258118400)

# Removing a field that no record has changes nothing, but only a primary does it: a replica answers READONLY. At maxmemory the server lets
# it pass, and with it the writes that follow in the same script.
_PRIMARY = "redis.call('HDEL', key, '')"

# Into r: the row of *key*, false where it is absent. Of a string, the row has the first letters alone; anything else is an empty row.
_ROW = """
local r = redis.pcall('HMGET', key, 'v', 'state', 'rvn', 'token', 'about', 'payload', 'queue', 'turn')
if r.err then
  if not string.find(r.err, 'WRONGTYPE', 1, true) then error(r.err) end
  local text = redis.pcall('GET', key)
  r = type(text) == 'string' and {false, false, false, false, false, string.sub(text, 1, 64)} or {}
elseif not r[1] and redis.call('EXISTS', key) == 0 then
  r = false
end
"""

# As _ROW, and proof that a primary shows it.
_ROW_OF_PRIMARY = f"""
{_ROW}
if not r or r[1] then {_PRIMARY} end
"""

# Whether a row is undamaged; a damaged one is shown, and never written.
_WHOLE = (
    "r[1] == '1' and r[3] and r[5] and r[6] and (r[6] == '' or string.find(r[6], '^%[[^\\n]*%]\\n[+-]')) "
    "and string.find(r[4] or '', '^%d+$')"
)

# Wake the waiter whose place is *first*, if there is one. A wake-up decides nothing, so it may fail. A claim that waits in the server does
# so at a list of its own, which goes with what is taken from it, or soon if nobody waits any more.
_WAKE = f"""
if first and string.sub(first, 1, 1) == '{IN_SERVER}' then
  local list = (string.find(key, '^[^{{]*{{[^}}]+}}') and key or key .. '{{' .. key .. '}}') .. first
  redis.pcall('RPUSH', list, '1')
  redis.pcall('PEXPIRE', list, {TURN_MS})
elseif first then
  redis.pcall('PUBLISH', string.sub(first, 1, {CHANNEL_LENGTH}), first)
end
"""

# Take from *queue* the first who still waits, as *first*, to whom the turn is given in *turn*. Places before it whose wait is over keep
# their rank for a second, in which the waiter may come back; then they are dropped. Those behind it stay as they are.
_NEXT_TURN = f"""
local turn, first, kept, rest = '', nil, '', 1
while not first do
  local from, to, place, till = string.find(queue, '([^\\31]+)\\31(%d+)\\30', rest)
  if not from then break end
  rest = to + 1
  if at < tonumber(till) then
    first, turn = place, place .. '\\31' .. string.format('%.0f', at + {TURN_MS * 1000})
  elseif at < till + 1000000 then
    kept = kept .. string.sub(queue, from, to)
  end
end
queue = kept .. string.sub(queue, rest)
redis.pcall('HSET', key, 'queue', queue, 'turn', turn)
{_WAKE}
"""

# Wake the first of *queue* who still waits, for a look at what was renewed. It keeps its place, and nobody gets a turn.
_LOOK = f"""
if queue ~= '' then
  local first
  for place, till in string.gmatch(queue, '([^\\31]+)\\31(%d+)\\30') do
    if at < tonumber(till) then
      first = place
      break
    end
  end
  {_WAKE}
end
"""

# Into shown: the row, the ms since it was written, and how many wait, of whom the one that asks may be one. The ms are 0 where the last
# writer noted no time.
_SHOWN = """
local t, age, waiters = redis.call('TIME'), 0, 0
local now = t[1] * 1000000 + t[2]
local since, writer = string.match(r[1] and redis.call('HMGET', key, 'written')[1] or '', '^(%d+) (.+)$')
if since and writer == r[3] then age = math.max(0, math.floor((now - since) / 1000)) end
for till in string.gmatch(r[7] or '', '\\31(%d+)\\30') do
  if now < tonumber(till) then waiters = waiters + 1 end
end
local shown = {r[1], r[2], r[3], r[4], r[5], r[6], age, waiters}
"""

_READ = f"""
local key = KEYS[1]
{_ROW_OF_PRIMARY}
if not r then return false end
{_SHOWN}
return shown
"""

# The decision on a claim: why it is refused, or else nil and a function that writes it and returns the answer. Nothing is written before.
# A refusal is the row, its age, and how many wait; the age is -1 where the free key is kept for the first who waits.
# Of a claim: rvn, least token, about, payload, options (m must exist, k keep payload, a absent, v version, w has waited), place, version.
# One that has waited comes also when its wait has ended otherwise: then it is applied only if its place is still known.
_DECIDE = f"""
local function decide(key, rvn, least, about, payload, options, place, was, was_token)
{_ROW}
local plain = options == ''
local waited = not plain and string.find(options, 'w')
local from, to = nil, nil
if waited and r then
  from = string.find(r[7] or '', place .. '\\31', 1, true)
  to = from and string.find(r[7], '\\30', from, true)
end
if not r then
  if not plain and string.find(options, '[mv]') then
    {_PRIMARY}
    return false
  end
  r = {{}}
elseif not ((r[2] == 'free' or r[2] == 'gone') and {_WHOLE})
    or not plain and (string.find(options, 'a') or string.find(options, 'm') and r[2] == 'gone'
      or string.find(options, 'v') and (r[3] ~= was or r[4] ~= was_token)
      or waited and not from and string.sub(r[8] or '', 1, #place + 1) ~= place .. '\\31') then
  if r[1] then {_PRIMARY} end
  {_SHOWN}
  return shown
end
local t = redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local turn = r[8] and r[8] ~= ''
if turn and place ~= '' then
  local first, till = string.match(r[8], '^([^\\31]+)\\31(%d+)$')
  if first ~= place and first ~= '{IN_SERVER}' .. place and at < tonumber(till) and till - at <= {TURN_MS * 1000} then
    {_PRIMARY}
    return {{r[1], r[2], r[3], r[4], r[5], r[6], -1}}
  end
end
if at < {_CLOCK_S[0]}000000 or at >= {_CLOCK_S[1]}000000 then
  return redis.error_reply('DLOCKCLOCK its clock shows ' .. t[1] .. ' s since 1970, which is not from 2024 to 2200')
end
local token = math.max(at, (tonumber(r[4]) or 0) + 1, tonumber(least))
if token > {TOKEN_MAX} then return redis.error_reply('DLOCKEND the fencing token of this key has reached its end') end
local text = string.format('%.0f', token)
local written = string.format('%.0f', at) .. ' ' .. rvn
return nil, function()
if plain or not (string.find(options, 'k') and r[6] and r[2] ~= 'gone') then
  redis.call('HSET', key, 'v', '1', 'state', 'held', 'rvn', rvn, 'token', text, 'about', about, 'payload', payload, 'written', written)
  payload = nil
else
  redis.call('HSET', key, 'state', 'held', 'rvn', rvn, 'token', text, 'about', about, 'written', written)
end
if turn then redis.pcall('HSET', key, 'turn', '') end
if from then redis.pcall('HSET', key, 'queue', string.sub(r[7], 1, from - 1) .. string.sub(r[7], to + 1)) end
if payload and (r[6] ~= '' or payload ~= '') then return {{token, r[6]}} end
return token
end
end
"""

# KEYS: the key. ARGV: the claim.
_CLAIM = f"""
{_DECIDE}
local refusal, write = decide(KEYS[1], unpack(ARGV))
if write then return write() end
return refusal
"""

# All claims or none. ARGV: for each key the claim, without a version. Where one is refused, the others answer their rows.
_CLAIM_MANY = f"""
{_DECIDE}
local answers, writes, refused = {{}}, {{}}, false
for i, key in ipairs(KEYS) do
  answers[i], writes[i] = decide(key, unpack(ARGV, i * 6 - 5, i * 6))
  if answers[i] and answers[i].err then return answers[i] end
  refused = refused or not writes[i]
end
for i, key in ipairs(KEYS) do
  if not refused then
    answers[i] = writes[i]()
  elseif writes[i] then
    {_ROW}
    answers[i] = r
    if r then
      {_SHOWN}
      answers[i] = shown
    end
  end
end
return answers
"""

# KEYS: the key. ARGV: expected rvn, expected token, least age in microseconds, x to remove the key or nothing to look only. A key goes if
# its token, too, is below the server's clock by that age: the token of its next record is then greater, unless the clock goes back by more.
_PRUNE = f"""
local key, rvn, token, older, removes = KEYS[1], unpack(ARGV)
{_ROW_OF_PRIMARY}
if not (r and (r[2] == 'free' or r[2] == 'gone') and r[3] == rvn and r[4] == token and {_WHOLE}) then return 0 end
local t = redis.call('TIME')
local latest = t[1] * 1000000 + t[2] - older
local at, writer = string.match(redis.call('HMGET', key, 'written')[1] or '', '^(%d+) (.+)$')
if writer ~= rvn or tonumber(at) > latest or tonumber(token) > latest then return 0 end
if removes == 'x' then redis.call('DEL', key) end
return 1
"""

# Writes of keys that are held, each by itself. ARGV: state, token or nothing for the expected one, payload, options (k keep payload, w the
# first who waits has its turn, l it only looks, f the token has the floor of a claim); then for each key expected rvn, expected token, rvn,
# about. Answers the number and the outcome of each key that was refused, whose payload was kept, or whose token is not the expected one.
# A takeover has the floor, since a takeover before it may be lost with the server, or at a failover.
_PUT = f"""
local state, minted, payload, options = unpack(ARGV, 1, 4)
local keeps, wakes, looks = string.find(options, 'k'), string.find(options, 'w'), string.find(options, 'l')
local answers, t = {{}}, redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local now = string.format('%.0f', at) .. ' '
local floor = string.find(options, 'f') and at < {_CLOCK_S[1]}000000 and at or 0
for i, key in ipairs(KEYS) do
  local seen, was, rvn, about = unpack(ARGV, i * 4 + 1, i * 4 + 4)
  local token = minted == '' and was or string.format('%.0f', math.max(floor, tonumber(minted)))
  {_ROW_OF_PRIMARY}
  if r and r[2] == 'held' and r[3] == seen and r[4] == was and {_WHOLE} then
    local queue, written = r[7] or '', now .. rvn
    redis.call('HSET', key, 'state', state, 'rvn', rvn, 'token', token, 'about', about, 'written', written)
    if wakes and queue ~= '' then
      {_NEXT_TURN}
    elseif looks then
      {_LOOK}
    end
    if not keeps then redis.call('HSET', key, 'payload', payload) end
    if keeps and r[6] ~= '' or minted ~= '' then
      answers[#answers + 1] = i
      answers[#answers + 1] = keeps and {{tonumber(token), r[6]}} or tonumber(token)
    end
  else
    answers[#answers + 1] = i
    answers[#answers + 1] = r and {{unpack(r, 1, 6)}}
  end
end
return answers
"""

# ARGV: the place of a waiter, how long it waits in microseconds, and the rvn of the held record that it has seen, or nothing. Answers 0
# where there is nothing to wait for. A waiter has one place, which it keeps when it waits in the other way than before; its turn, too.
_ENTER = f"""
local key, mine, seen, first = KEYS[1], ARGV[1], ARGV[3], nil
if string.sub(mine, 1, 1) == '{IN_SERVER}' then first = mine end
{_ROW_OF_PRIMARY}
if not r or not r[1] then
  {_WAKE}
  return 0
end
if r[1] ~= '1' then return 1 end
if seen and r[2] == 'held' and r[3] ~= seen then return 0 end
local t = redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local owner, till = string.match(r[8] or '', '^([^\\31]+)\\31(%d+)$')
local kept = till and at < tonumber(till) and till - at <= {TURN_MS * 1000}
local bare = first and string.sub(mine, 2) or mine
if r[2] ~= 'held' and kept and (owner == bare or owner == '{IN_SERVER}' .. bare) then
  redis.call('HSET', key, 'turn', mine .. '\\31' .. till)
  {_WAKE}
  return 0
end
local entry = mine .. '\\31' .. string.format('%.0f', at + ARGV[2]) .. '\\30'
local queue = r[7] or ''
local from, to = string.find(queue, bare .. '\\31', 1, true)
if from then
  if string.sub(queue, from - 1, from - 1) == '{IN_SERVER}' then from = from - 1 end
  to = string.find(queue, '\\30', to, true) or #queue
  queue = string.sub(queue, 1, from - 1) .. entry .. string.sub(queue, to + 1)
elseif select(2, string.gsub(queue, '\\30', '')) < {PLACES_MAX} then
  queue = queue .. entry
else
  local places = {{}}
  for place, till in string.gmatch(queue, '([^\\31]+)\\31(%d+)\\30') do
    if at < till + 1000000 then places[#places + 1] = place .. '\\31' .. till .. '\\30' end
  end
  if #places < {PLACES_MAX} then places[#places + 1] = entry end
  queue = table.concat(places)
end
if r[2] == 'held' or kept then
  redis.call('HSET', key, 'queue', queue)
else
  {_NEXT_TURN}
end
return 1
"""

# ARGV: the place of a waiter that ends before it was answered. Its turn passes to the next. Answers whether the place was known: a claim
# that has waited there was not applied, and will not be.
_LEAVE = f"""
local key, mine = KEYS[1], ARGV[1]
{_ROW_OF_PRIMARY}
if not r or r[1] ~= '1' then return 0 end
local places, known = {{}}, 0
for place, till in string.gmatch(r[7] or '', '([^\\31]+)\\31(%d+)\\30') do
  if place == mine then known = 1 else places[#places + 1] = place .. '\\31' .. till .. '\\30' end
end
local queue = table.concat(places)
if r[2] ~= 'held' and string.match(r[8] or '', '^([^\\31]+)\\31') == mine then
  local t = redis.call('TIME')
  local at = t[1] * 1000000 + t[2]
  {_NEXT_TURN}
  return 1
end
redis.call('HSET', key, 'queue', queue)
return known
"""


class Script:
    """A script, named by its digest; the server that does not have it yet is sent the text."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.digest = sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self.named = packed((b"EVALSHA", self.digest))
        self.whole = packed((b"EVAL", self.text))


class Invocation(NamedTuple):
    """One run of a script."""

    script: Script
    keys: Sequence[str]
    words: Sequence[bytes]

    def packed(self, *, whole: bool = False) -> bytes:
        """Return the command; *whole*: with the script's text in place of its digest."""
        rest = (b"%d" % len(self.keys), *[key.encode() for key in self.keys], *self.words)
        return b"*%d\r\n%b%b" % (len(rest) + 2, self.script.whole if whole else self.script.named, packed(rest))


READ, CLAIM, CLAIM_MANY, PUT, ENTER, LEAVE, PRUNE = (
    Script(text) for text in (_READ, _CLAIM, _CLAIM_MANY, _PUT, _ENTER, _LEAVE, _PRUNE)
)
