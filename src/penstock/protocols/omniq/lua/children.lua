-- needs: base
-- children: count the children of a fan-out. KEYS[1] is {cc:key}:meta.
-- ARGV: init, expected; or ack, child. Answers a code or how many are still missing.

local count, done = base .. ':count', base .. ':done'

if ARGV[1] == 'init' then
  if int(ARGV[2], 0) <= 0 then return 'BAD_EXPECTED' end
  if not call('SET', count, int(ARGV[2], 0), 'NX') then return 'ALREADY_INIT' end
  call('DEL', done)
  return 'OK'
end

local missing = call('GET', count)
if not missing then return 'NO_COUNTER' end
if call('SADD', done, ARGV[2]) == 0 then return int(missing, 0) end
local left = call('DECR', count)
if left > 0 then return left end
call('DEL', count, done)
return 0
