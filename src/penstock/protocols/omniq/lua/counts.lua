-- needs: base
-- counts: the true lengths of the lanes. Answers paused, wait, active, delayed, completed, failed,
-- groups ready.

return {
  call('EXISTS', base .. ':paused'), call('LLEN', base .. ':wait'), call('ZCARD', ACTIVE),
  call('ZCARD', DELAYED), call('LLEN', base .. ':completed'), call('LLEN', base .. ':failed'),
  call('ZCARD', READY),
}
