-- needs: base
-- reindex: one bounded step of rebuilding the mirrors.
-- ARGV: add, state, lane, offset, limit: index the ids of that part of a lane; answers how many it saw.
-- ARGV: prune, state, cursor: drop ids that are not in that state; answers the next cursor.

local state = ARGV[2]
local index = base .. ':idx:' .. state

if ARGV[1] == 'add' then
  local key, first = base .. ':' .. ARGV[3], int(ARGV[4], 0)
  local last = first + int(ARGV[5], 500) - 1
  local sorted = ARGV[3] == 'active' or ARGV[3] == 'delayed'
  local ids = call(sorted and 'ZRANGE' or 'LRANGE', key, first, last)
  for _, id in ipairs(ids) do
    local job = call('HMGET', job_key(id), 'state', 'updated_ms')
    if job[1] == state then call('ZADD', index, 'NX', int(job[2], 0), id) end
  end
  return #ids
end

local page = call('ZSCAN', index, ARGV[3], 'COUNT', 500)
for n = 1, #page[2], 2 do
  local id = page[2][n]
  if call('HGET', job_key(id), 'state') ~= state then call('ZREM', index, id) end
end
return page[1]
