-- lanes: where waiting jobs stand, and which groups may run.
--
-- A gid is in groups:ready exactly when its list is not empty and it has room.

local function has_room(gid)
  local values = call('MGET', group_key(gid, 'inflight'), group_key(gid, 'limit'))
  return int(values[1], 0) < positive(values[2], 1)
end

-- NX: a group that is ready already keeps its place in the round.
local function mark_ready(gid, now)
  if call('ZADD', READY, 'NX', now, gid) == 1 then tally('groups_ready', 1) end
end

local function unmark_ready(gid)
  if call('ZREM', READY, gid) == 1 then tally('groups_ready', -1) end
end

local function ready_if_possible(gid, now)
  if call('EXISTS', group_key(gid, 'wait')) == 1 and has_room(gid) then mark_ready(gid, now) end
end

-- side is RPUSH for the back of the line, LPUSH for the front.
local function push(side, id, gid, now)
  if gid == '' then
    call(side, base .. ':wait', id)
  else
    call(side, group_key(gid, 'wait'), id)
    if has_room(gid) then mark_ready(gid, now) end
  end
  entered('wait', id, now)
  tally_waiting(gid, 1)
end
