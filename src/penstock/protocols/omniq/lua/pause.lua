-- needs: base
-- pause: a flag that stops new leases and nothing else. ARGV: pause, resume or look.

local flag = base .. ':paused'
if ARGV[1] == 'look' then return call('EXISTS', flag) end
if ARGV[1] == 'pause' then
  call('SET', flag, '1')
  return 'OK'
end
return call('DEL', flag)
