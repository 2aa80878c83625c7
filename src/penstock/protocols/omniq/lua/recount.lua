-- needs: base mirror lanes
-- recount: make in-flight counts and readiness of groups true again. ARGV: now, then gids to look at
-- besides those that are ready or running. Answers how many groups were wrong.

local now = clock(ARGV[1])
local running, wrong = {}, 0

for at = 2, #ARGV do running[ARGV[at]] = 0 end
for _, gid in ipairs(call('ZRANGE', READY, 0, -1)) do running[gid] = 0 end
for _, id in ipairs(call('ZRANGE', ACTIVE, 0, -1)) do
  local gid = call('HGET', job_key(id), 'gid') or call('HGET', LEASED, id)
  if gid and gid ~= '' then running[gid] = (running[gid] or 0) + 1 end
end

local function mend(gid, count)
  local key = group_key(gid, 'inflight')
  local mended = int(call('GET', key), 0) ~= count
  if count > 0 then call('SET', key, count) else call('DEL', key) end
  local able = has_room(gid) and call('EXISTS', group_key(gid, 'wait')) == 1
  local ready = call('ZSCORE', READY, gid) and true or false
  if able and not ready then mark_ready(gid, now) end
  if ready and not able then unmark_ready(gid) end
  return mended or able ~= ready
end

for gid, count in pairs(running) do
  if mend(gid, count) then wrong = wrong + 1 end
end
return wrong
