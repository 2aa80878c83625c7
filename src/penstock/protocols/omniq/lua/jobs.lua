-- needs: base
-- jobs: hashes, each as a flat list after its id; ids without a hash are left out.
-- ARGV: ids, then the ids; or a lane, then offset, limit, 1 for the newest first.
--   wait, failed, completed are lists; active, delayed sorted sets; g:<gid>:wait a group's list;
--   idx:<state> the index that SDK 4.0 keeps. With `page` before all that, how many ids there were
--   comes first.

local function page(lane, first, last, backwards)
  local key = base .. ':' .. lane
  if lane == 'active' or lane == 'delayed' or string.sub(lane, 1, 4) == 'idx:' then
    return call(backwards and 'ZREVRANGE' or 'ZRANGE', key, first, last)
  end
  if not backwards then return call('LRANGE', key, first, last) end
  local ids, turned = call('LRANGE', key, -last - 1, -first - 1), {}
  for n = #ids, 1, -1 do turned[#turned + 1] = ids[n] end
  return turned
end

local ids = {}
local counted = ARGV[1] == 'page'
if counted then table.remove(ARGV, 1) end
if ARGV[1] == 'ids' then
  for at = 2, #ARGV do ids[#ids + 1] = ARGV[at] end
else
  local first = int(ARGV[2], 0)
  ids = page(ARGV[1], first, first + int(ARGV[3], 25) - 1, ARGV[4] == '1')
end
local out = {}
for _, id in ipairs(ids) do
  local job = call('HGETALL', job_key(id))
  if #job > 0 then out[#out + 1] = {id, job} end
end
return counted and {#ids, out} or out
