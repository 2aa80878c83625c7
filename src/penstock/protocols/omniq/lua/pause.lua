-- needs: base
-- pause: a flag that stops new leases and nothing else. ARGV: pause, resume or look.

local flag = base .. ':paused'
if ARGV[1] == 'look' then return call('EXISTS', flag) end
if ARGV[1] == 'pause' then
  call('SET', flag, '1')
  return 'OK'
end
local gone = call('DEL', flag)
for _ = 1, math.min(call('ZCARD', base .. ':x:waiters') - call('LLEN', base .. ':x:wake'), 1000) do
  call('RPUSH', base .. ':x:wake', '1')
end
call('PEXPIRE', base .. ':x:wake', 30000)
return gone
