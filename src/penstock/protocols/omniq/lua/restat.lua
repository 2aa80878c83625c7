-- needs: base
-- restat: set the counters of the mirrors to the true lengths, at one instant. ARGV: all gids with a list.

local grouped = 0
for at = 1, #ARGV do grouped = grouped + call('LLEN', group_key(ARGV[at], 'wait')) end
local waiting = call('LLEN', base .. ':wait')
call('HSET', base .. ':stats', 'waiting', waiting, 'group_waiting', grouped,
  'waiting_total', waiting + grouped, 'active', call('ZCARD', ACTIVE),
  'delayed', call('ZCARD', DELAYED), 'failed', call('LLEN', base .. ':failed'),
  'completed_kept', call('LLEN', base .. ':completed'), 'groups_ready', call('ZCARD', READY))
return 'OK'
