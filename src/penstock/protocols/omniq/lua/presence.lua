-- needs: base
-- presence: 1 if clients of SDK 2.0 or later have been on this queue.

return call('EXISTS', base .. ':stats', base .. ':idx:wait', base .. ':idx:active') > 0 and 1 or 0
