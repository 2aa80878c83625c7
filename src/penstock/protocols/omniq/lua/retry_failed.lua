-- needs: base mirror lanes
-- retry_failed: failed jobs wait again with all their attempts. ARGV: now, ids. Answers OK or a code each.

local now = clock(ARGV[1])

local function retry(id)
  if id == '' then return 'BAD_JOB_ID' end
  local key = job_key(id)
  local job = call('HMGET', key, 'state', 'gid', 'attempt', 'x_returned')
  if not job[1] then return 'NO_JOB' end
  if job[1] ~= 'failed' then return 'NOT_FAILED' end
  call('LREM', base .. ':failed', 1, id)
  call('ZREM', ACTIVE, id)
  call('ZREM', DELAYED, id)
  left('failed', id)
  left('delayed', id)
  tally('failed', -1)
  call('HSET', key, 'state', 'wait', 'attempt', '0', 'lease_token', '', 'lock_until_ms', '',
    'due_ms', '', 'updated_ms', now, 'x_returned', int(job[4], 0) + int(job[3], 0))
  stamp(key, 'failed_ms', '')
  push('RPUSH', id, job[2] or '', now)
  return 'OK'
end

if #ARGV > 101 then return {'BATCH_TOO_LARGE'} end
local answers = {}
for at = 2, #ARGV do answers[#answers + 1] = retry(ARGV[at]) end
noted(now)
return answers
