-- needs: base
-- stats: the counters that SDK 4.0 keeps, flat, and whether the queue is paused.

return {call('EXISTS', base .. ':paused'), call('HGETALL', base .. ':stats')}
