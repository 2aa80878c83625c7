-- needs: base mirror lanes
-- remove_job: take jobs out of a lane for good. ARGV: now, lane, ids. Answers OK or a code each.

local now, lane = clock(ARGV[1]), ARGV[2]
local STATE = {wait = 'wait', gwait = 'wait', delayed = 'delayed', failed = 'failed',
  completed = 'completed'}

local function take_out(id, gid)
  if lane == 'delayed' then return call('ZREM', DELAYED, id) end
  if lane == 'gwait' then return call('LREM', group_key(gid, 'wait'), 1, id) end
  return call('LREM', base .. ':' .. lane, 1, id)
end

local function count_out(gid)
  if lane == 'wait' or lane == 'gwait' then
    tally_waiting(lane == 'wait' and '' or gid, -1)
  elseif lane == 'completed' then
    kept(call('LLEN', base .. ':completed'))
  else
    tally(lane, -1)
  end
end

local function remove(id)
  if id == '' then return 'BAD_JOB_ID' end
  local job = call('HMGET', job_key(id), 'state', 'gid')
  if not job[1] then return 'NO_JOB' end
  if call('ZSCORE', ACTIVE, id) then return 'ACTIVE' end
  local gid = job[2] or ''
  if STATE[lane] ~= job[1] or (lane == 'gwait' and gid == '') then return 'LANE_MISMATCH' end
  if take_out(id, gid) == 0 then return 'NOT_IN_LANE' end
  left(STATE[lane], id)
  count_out(gid)
  if lane == 'gwait' then
    if call('EXISTS', group_key(gid, 'wait')) == 0 then unmark_ready(gid)
    else ready_if_possible(gid, now) end
  end
  call('DEL', job_key(id))
  return 'OK'
end

if #ARGV > 102 then return {'BATCH_TOO_LARGE'} end
local answers = {}
for at = 3, #ARGV do answers[#answers + 1] = remove(ARGV[at]) end
return answers
