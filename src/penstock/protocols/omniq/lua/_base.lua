-- base: names of keys, numbers, the clock. KEYS[1] is base:meta, an anchor that is never created.

-- Scripts read the clock, so their effects are logged and replicated, not their text.
if redis.replicate_commands then redis.replicate_commands() end

local call = redis.call
local base = string.sub(KEYS[1], 1, -6)
local ACTIVE = base .. ':active'
local DELAYED = base .. ':delayed'
local READY = base .. ':groups:ready'
local LEASED = base .. ':x:leased' -- id to gid of grouped leases we granted, for the reaper

local function job_key(id) return base .. ':job:' .. id end

local function group_key(gid, part) return base .. ':g:' .. gid .. ':' .. part end

-- Missing and empty fields are the same thing: `missing`.
local function int(text, missing)
  local number = tonumber(text)
  if not number then return missing end
  return math.floor(number)
end

local function positive(text, missing)
  local number = int(text, missing)
  if number <= 0 then return missing end
  return number
end

-- One call uses one instant: the override if given, else this server's clock.
local function clock(override)
  local given = int(override, 0)
  if given > 0 then return given end
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
