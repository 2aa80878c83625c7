-- mirror, off (compat v1): nobody reads stats, indexes or the timestamps of SDK 2.0 and later.

local function entered() end
local function left() end
local function tally() end
local function tally_waiting() end
local function noted() end
local function stamp() end
local function started() end
local function kept() end
