package world

import "time"

// More kinds of faults, of the kernel alone.
const (
	LateAnswers = "late answers" // what is read is from before what the daemon has been told meanwhile
	SlowReclaim = "slow reclaim" // memory.reclaim frees so little a second that more is made meanwhile
)

// Late and ReclaimRate are world.Faults.
func (t *trouble) Late(cgroup, file string) {
	if of := "late " + cgroup + file; t.left(LateAnswers) > 0 && t.draw(of, 20) == 0 {
		time.Sleep(time.Duration(50+t.draw(of, 1200)) * time.Millisecond)
	}
}

func (t *trouble) ReclaimRate(cgroup string) uint64 {
	if t.left(SlowReclaim) == 0 {
		return 0
	}
	return uint64(32+t.draw(cgroup, 120)) * mi
}
