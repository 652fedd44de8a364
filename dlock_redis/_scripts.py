"""The scripts: one for each verb, run by the server as one atomic step. What the fields mean stands in :mod:`dlock_redis._wire`.

Numbers are formatted with ``%.0f`` only: ``tostring`` and ``..`` round them. Whatever can fail comes before the first write, so an error
that the server answers means that nothing was written. The waiters' queue only ever delays a claim, by ``TURN_MS`` at most.
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
_CLOCK_S = (
    1704067200,
    7258118400,
)  # 2024 and 2200: outside, the clock is wrong, and tokens made of it would not go back

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

# What is damaged is shown and never written.
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

# What is written here decides nothing, so it may fail.
_WAKE = f"""
if first then
  redis.pcall('RPUSH', first, '1')
  redis.pcall('PEXPIRE', first, {TURN_MS})
end
"""

_NEXT_TURN = f"""
{_NEXT}
redis.pcall('HSET', key, 'queue', queue, 'turn', turn)
{_WAKE}
"""

# Wake the first of *queue* who still waits, for a look at what was renewed. It keeps its place, and nobody gets a turn.
_LOOK = f"""
for place, till in string.gmatch(queue, '([^\\31]+)\\31(%d+)\\30') do
  if at < tonumber(till) then
    redis.pcall('RPUSH', place, '1')
    redis.pcall('PEXPIRE', place, {TURN_MS})
    break
  end
end
"""

_READ = f"""
local key = KEYS[1]
{_ROW}
return r and {{unpack(r, 1, 6)}}
"""

# The row, and how old it is in ms. What a writer that keeps no time has written is not older than now.
_READ_AGE = f"""
local key = KEYS[1]
{_ROW}
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
  if not plain and string.find(options, '[mv]') then return false end
  r = {{}}
elseif not ((r[2] == 'free' or r[2] == 'gone') and {_WHOLE})
    or not plain and (string.find(options, 'a') or string.find(options, 'm') and r[2] == 'gone'
      or string.find(options, 'v') and (r[3] ~= ARGV[7] or r[4] ~= ARGV[8])) then
  return {{unpack(r, 1, 6)}}
end
local t = redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local turn = r[8] and r[8] ~= ''
if turn and place ~= '' then
  local first, till = string.match(r[8], '^([^\\31]+)\\31(%d+)$')
  if first ~= place and at < tonumber(till) then
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

# Into answer: what became of one key. ARGV from n on: expected rvn, expected token, state, rvn, token, about, payload, k or nothing.
_PUT_ONE = f"""
{_ROW}
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

# Renewals of many keys that change nothing but the RVN. ARGV: about, then for each key: expected rvn, token, rvn. Answers place and
# outcome of those that were refused, or have a payload.
_RENEW_MANY = f"""
local answers, about, t = {{}}, ARGV[1], redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local written = string.format('%.0f', at) .. ' '
for i, key in ipairs(KEYS) do
  local n = i * 3 - 1
  {_ROW}
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

# KEYS: the key, the place of a waiter. ARGV: how long it waits, in microseconds. Nothing to wait for: it is woken at once.
_ENTER = f"""
local key = KEYS[1]
{_ROW}
if not r or not r[1] then
  redis.call('RPUSH', KEYS[2], '1')
  redis.call('PEXPIRE', KEYS[2], {TURN_MS})
  return 0
end
if r[1] ~= '1' then return 0 end
local t = redis.call('TIME')
local at = t[1] * 1000000 + t[2]
local mine = KEYS[2] .. '\\31' .. string.format('%.0f', at + ARGV[1]) .. '\\30'
local queue = r[7] or ''
local from, to = string.find(queue, KEYS[2] .. '\\31', 1, true)
if from then
  to = string.find(queue, '\\30', to, true) or #queue
  queue = string.sub(queue, 1, from - 1) .. mine .. string.sub(queue, to + 1)
elseif select(2, string.gsub(queue, '\\30', '')) < {PLACES_MAX} then
  queue = queue .. mine
else
  local places = {{}}
  for place, till in string.gmatch(queue, '([^\\31]+)\\31(%d+)\\30') do
    if at < till + 1000000 then places[#places + 1] = place .. '\\31' .. till .. '\\30' end
  end
  if #places < {PLACES_MAX} then places[#places + 1] = mine end
  queue = table.concat(places)
end
local till = string.match(r[8] or '', '\\31(%d+)$')
if r[2] == 'held' or till and at < tonumber(till) then
  redis.call('HSET', key, 'queue', queue)
else
  {_NEXT_TURN}
end
return 1
"""

# KEYS: the key, the place of a waiter that ends before it was answered. Its turn passes to the next.
_LEAVE = f"""
local key = KEYS[1]
{_ROW}
redis.call('DEL', KEYS[2])
if not r or r[1] ~= '1' then return 0 end
local places = {{}}
for place, till in string.gmatch(r[7] or '', '([^\\31]+)\\31(%d+)\\30') do
  if place ~= KEYS[2] then places[#places + 1] = place .. '\\31' .. till .. '\\30' end
end
local queue = table.concat(places)
if r[2] ~= 'held' and string.match(r[8] or '', '^([^\\31]+)\\31') == KEYS[2] then
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
