"""The scripts: one for each verb, run by the server as one atomic step. :mod:`dlock_redis._wire` explains the fields.

Numbers are formatted with ``%.0f`` only: ``tostring`` and ``..`` round them. Everything that can fail comes before the first write, so an
error that the server answers means that nothing was written. The waiters' queue only ever delays a claim, by ``TURN_MS`` at most.
"""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING

from dlock_core.record import TOKEN_MAX
from dlock_redis._resp import packed

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN_MS = 50
PLACES_MAX = 512
# A place is the channel of a store, which has this length, and the ticket of one waiter.
CHANNEL_LENGTH = 22
# 2024 and 2200: outside, the clock is wrong, and tokens made of it would not go back.
_CLOCK_S = (1704067200, 7258118400)

# Removing a field that no record has changes nothing, but only a primary does it: a replica answers READONLY. At maxmemory the server lets
# it pass, and with it the writes that follow in the same script.
_PRIMARY = "redis.call('HDEL', key, '')"

# Into r: the row of *key*, empty where the key holds something else than a hash, false where it is absent.
_ROW = """
local r = redis.pcall('HMGET', key, 'v', 'state', 'rvn', 'token', 'about', 'payload', 'queue', 'turn')
if r.err then
  if not string.find(r.err, 'WRONGTYPE', 1, true) then error(r.err) end
  r = {}
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

# Take from *queue* the first who still waits, as *first*, to whom the turn is given in *turn*. Places before it whose wait is over keep
# their rank for a second, in which the waiter may come back; then they are dropped. Those behind it stay as they are.
_NEXT = f"""
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
"""

# A wake-up decides nothing, so it may fail.
_WAKE = f"if first then redis.pcall('PUBLISH', string.sub(first, 1, {CHANNEL_LENGTH}), first) end"

_NEXT_TURN = f"""
{_NEXT}
redis.pcall('HSET', key, 'queue', queue, 'turn', turn)
{_WAKE}
"""

# Wake the first of *queue* who still waits, for a look at what was renewed. It keeps its place, and nobody gets a turn.
_LOOK = f"""
for place, till in string.gmatch(queue, '([^\\31]+)\\31(%d+)\\30') do
  if at < tonumber(till) then
    redis.pcall('PUBLISH', string.sub(place, 1, {CHANNEL_LENGTH}), place)
    break
  end
end
"""

_READ = f"""
local key = KEYS[1]
{_ROW_OF_PRIMARY}
return r and {{unpack(r, 1, 6)}}
"""

# The row, and its age in ms; 0 where the last writer noted no time.
_READ_AGE = f"""
local key = KEYS[1]
{_ROW_OF_PRIMARY}
if not r then return false end
local age, at, rvn = 0, nil, nil
if r[1] then
  at, rvn = string.match(redis.call('HMGET', key, 'written')[1] or '', '^(%d+) (.+)$')
end
if at and rvn == r[3] then
  local t = redis.call('TIME')
  age = math.max(0, math.floor((t[1] * 1000000 + t[2] - at) / 1000))
end
return {{{{unpack(r, 1, 6)}}, age}}
"""

# KEYS: the key. ARGV: rvn, least token, about, payload, options (m must exist, k keep payload, a absent, v version), place, version.
_CLAIM = f"""
local key, rvn, least, about, payload, options, place = KEYS[1], unpack(ARGV)
{_ROW}
local plain = options == ''
if not r then
  if not plain and string.find(options, '[mv]') then
    {_PRIMARY}
    return false
  end
  r = {{}}
elseif not ((r[2] == 'free' or r[2] == 'gone') and {_WHOLE})
    or not plain and (string.find(options, 'a') or string.find(options, 'm') and r[2] == 'gone'
      or string.find(options, 'v') and (r[3] ~= ARGV[7] or r[4] ~= ARGV[8])) then
  if r[1] then {_PRIMARY} end
  return {{unpack(r, 1, 6)}}
end
local t = redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local turn = r[8] and r[8] ~= ''
if turn and place ~= '' then
  local first, till = string.match(r[8], '^([^\\31]+)\\31(%d+)$')
  if first ~= place and at < tonumber(till) and till - at <= {TURN_MS * 1000} then
    {_PRIMARY}
    return {{r[1], r[2], r[3], r[4], r[5], r[6], 1}}
  end
end
if at < {_CLOCK_S[0]}000000 or at >= {_CLOCK_S[1]}000000 then
  return redis.error_reply('DLOCKCLOCK its clock shows ' .. t[1] .. ' s since 1970, which is not from 2024 to 2200')
end
local token = math.max(at, (tonumber(r[4]) or 0) + 1, tonumber(least))
if token > {TOKEN_MAX} then return redis.error_reply('DLOCKEND the fencing token of this key has reached its end') end
local text = string.format('%.0f', token)
local written = string.format('%.0f', at) .. ' ' .. rvn
if plain or not (string.find(options, 'k') and r[6] and r[2] ~= 'gone') then
  if turn then
    redis.call('HSET', key, 'v', '1', 'state', 'held', 'rvn', rvn, 'token', text, 'about', about, 'payload', payload, 'written', written,
      'turn', '')
  else
    redis.call('HSET', key, 'v', '1', 'state', 'held', 'rvn', rvn, 'token', text, 'about', about, 'payload', payload, 'written', written)
  end
  payload = nil
else
  redis.call('HSET', key, 'state', 'held', 'rvn', rvn, 'token', text, 'about', about, 'written', written)
  if turn then redis.pcall('HSET', key, 'turn', '') end
end
if payload and (r[6] ~= '' or payload ~= '') then return {{token, r[6]}} end
return token
"""

# Into answer: the outcome for one key. ARGV from n on: expected rvn, expected token, state, rvn, token, about, payload, k or nothing.
_PUT_ONE = f"""
{_ROW_OF_PRIMARY}
local answer
if r and r[2] == 'held' and r[3] == ARGV[n] and r[4] == ARGV[n + 1] and {_WHOLE} then
  local state, kept, rvn, t = ARGV[n + 2], ARGV[n + 7] == 'k', ARGV[n + 3], redis.call('TIME')
  local at = t[1] * 1000000 + t[2]
  local written = string.format('%.0f', at) .. ' ' .. rvn
  local queue, token, about = r[7], ARGV[n + 4], ARGV[n + 5]
  if state ~= 'held' and queue and queue ~= '' then
    {_NEXT}
    redis.call('HSET', key, 'state', state, 'rvn', rvn, 'token', token, 'about', about, 'written', written, 'queue', queue, 'turn', turn)
    {_WAKE}
  else
    redis.call('HSET', key, 'state', state, 'rvn', rvn, 'token', token, 'about', about, 'written', written)
    if queue and queue ~= '' then
      {_LOOK}
    end
  end
  if not kept then redis.call('HSET', key, 'payload', ARGV[n + 6]) end
  answer = tonumber(ARGV[n + 4])
  if kept and (r[6] ~= '' or ARGV[n + 6] ~= '') then answer = {{answer, r[6]}} end
else
  answer = r and {{unpack(r, 1, 6)}}
end
"""

_PUT = f"""
local key, n = KEYS[1], 1
{_PUT_ONE}
return answer
"""

_PUT_MANY = f"""
local answers = {{}}
for i, key in ipairs(KEYS) do
  local n = i * 8 - 7
  {_PUT_ONE}
  answers[i] = answer
end
return answers
"""

# Renewals of many keys that change nothing but the RVN. ARGV: about, then for each key: expected rvn, token, rvn. Answers the number and
# the outcome of each that was refused, or has a payload.
_RENEW_MANY = f"""
local answers, about, t = {{}}, ARGV[1], redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local written = string.format('%.0f', at) .. ' '
for i, key in ipairs(KEYS) do
  local n = i * 3 - 1
  {_ROW_OF_PRIMARY}
  if r and r[2] == 'held' and r[3] == ARGV[n] and r[4] == ARGV[n + 1] and {_WHOLE} then
    local rvn, queue = ARGV[n + 2], r[7]
    redis.call('HSET', key, 'rvn', rvn, 'about', about, 'written', written .. rvn)
    if queue and queue ~= '' then
      {_LOOK}
    end
    if r[6] ~= '' then
      answers[#answers + 1] = i
      answers[#answers + 1] = {{tonumber(r[4]), r[6]}}
    end
  else
    answers[#answers + 1] = i
    answers[#answers + 1] = r and {{unpack(r, 1, 6)}}
  end
end
return answers
"""

# ARGV: the place of a waiter, and how long it waits in microseconds. Answers 0 where there is nothing to wait for.
_ENTER = f"""
local key, mine = KEYS[1], ARGV[1]
{_ROW_OF_PRIMARY}
if not r or not r[1] then return 0 end
if r[1] ~= '1' then return 1 end
local t = redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local owner, till = string.match(r[8] or '', '^([^\\31]+)\\31(%d+)$')
local kept = till and at < tonumber(till) and till - at <= {TURN_MS * 1000}
if r[2] ~= 'held' and kept and owner == mine then return 0 end
local entry = mine .. '\\31' .. string.format('%.0f', at + ARGV[2]) .. '\\30'
local queue = r[7] or ''
local from, to = string.find(queue, mine .. '\\31', 1, true)
if from then
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

# ARGV: the place of a waiter that ends before it was answered. Its turn passes to the next.
_LEAVE = f"""
local key, mine = KEYS[1], ARGV[1]
{_ROW_OF_PRIMARY}
if not r or r[1] ~= '1' then return 0 end
local places = {{}}
for place, till in string.gmatch(r[7] or '', '([^\\31]+)\\31(%d+)\\30') do
  if place ~= mine then places[#places + 1] = place .. '\\31' .. till .. '\\30' end
end
local queue = table.concat(places)
if r[2] ~= 'held' and string.match(r[8] or '', '^([^\\31]+)\\31') == mine then
  local t = redis.call('TIME')
  local at = t[1] * 1000000 + t[2]
  {_NEXT_TURN}
else
  redis.call('HSET', key, 'queue', queue)
end
return 1
"""


class Script:
    """A script, named by its digest; the server that does not have it yet is sent the text."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.digest = sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self._named = packed((b"EVALSHA", self.digest))
        self._whole = packed((b"EVAL", self.text))

    def command(self, keys: Sequence[bytes], words: Sequence[bytes] = (), *, whole: bool = False) -> bytes:
        """Return the packed call; *whole*: with the text."""
        rest = (b"%d" % len(keys), *keys, *words)
        return b"*%d\r\n%b%b" % (len(rest) + 2, self._whole if whole else self._named, packed(rest))


READ, READ_AGE, CLAIM, PUT, PUT_MANY, RENEW_MANY, ENTER, LEAVE = (
    Script(text) for text in (_READ, _READ_AGE, _CLAIM, _PUT, _PUT_MANY, _RENEW_MANY, _ENTER, _LEAVE)
)
