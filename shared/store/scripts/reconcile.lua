-- Take back what a worker has and does not know: a reply was lost. ARGV: worker, id that it knows...
-- Reply: flat id, new state, ... of the jobs that were taken back
local worker, known, count, reply = ARGV[1], {}, 0, {}
for i = 2, #ARGV do known[ARGV[i]] = true end
for _, held in ipairs(held_by(worker, 1000000)) do
  if known[held[1]] then
    count = count + 1
  else
    local state = take_back(held, worker, 'handed_over', 'not_received')
    if state then reply[#reply + 1], reply[#reply + 2] = held[1], state end
  end
end
flush_drops()
recount(worker, count)
return reply
