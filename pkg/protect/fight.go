package protect

import (
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Overwrite names a file that somebody else wrote.
type Overwrite struct{ Level, File string }

// A fight is a series of foreign writes to one file. The first is repaired at once; each further one a little later, so that a
// busy writer cannot keep us busy; and when it goes on for long we leave the file to the periodic check. A writer that comes
// once a minute, as the kubelet does, is met at once every time.
type fight struct {
	open  bool      // a foreign write was found and has not been repaired yet
	due   time.Time // when it is to be repaired
	began time.Time
	last  time.Time
	count int
}

const (
	quiet       = 10 * time.Second // a fight is over when nobody wrote for so long
	firstDelay  = 25 * time.Millisecond
	longest     = 100 * time.Millisecond
	stubborn    = 10 * time.Minute // a fight that lasts longer
	resignation = 10 * time.Second // is fought only so often
)

// hit takes note of a foreign write.
func (f *fight) hit(now time.Time) {
	if f.count == 0 || now.Sub(f.last) > quiet+f.delay(now) {
		*f = fight{began: now}
	}
	f.open, f.last, f.due = true, now, now.Add(f.delay(now))
	f.count++
}

// delay is how long to wait with the next repair.
func (f *fight) delay(now time.Time) time.Duration {
	switch {
	case f.count == 0:
		return 0
	case now.Sub(f.began) > stubborn:
		return resignation
	case f.count > 4:
		return longest
	}
	return min(firstDelay<<(f.count-1), longest)
}

const lineEvery = 10 * time.Minute

// overwritten counts a foreign write and logs it when it repeats, at most every ten minutes for a file of a level.
func (p *Protector) overwritten(c change) {
	h, f := c.held, c.file()
	o := Overwrite{Level: h.level, File: string(protected[c.index])}
	p.overwrites[o]++
	f.overwritten++
	now := p.now()
	if last, logged := p.lines[o]; p.overwrites[o] < 2 || logged && now.Sub(last) < lineEvery {
		return
	}
	p.lines[o] = now
	p.log.WithFields(logrus.Fields{
		"cgroup": h.cgroup, "file": o.File, "found": cgroup.FormatLimit(f.have), "restored": cgroup.FormatLimit(f.want), "times": p.overwrites[o],
	}).Warnf("somebody else keeps writing this file: %s", likely(h, protected[c.index], f.have))
}

// likely names who may have written a value, from what kubelets and systemd were seen to do.
func likely(h *held, knob cgroup.Knob, found uint64) string {
	kubelets := h.level == cgroup.LevelKubepods && knob == cgroup.MemoryMin || h.level == cgroup.LevelBurstable && knob == cgroup.MemoryLow
	switch {
	case kubelets && found == 0 && h.driver == cgroup.Systemd:
		return "likely systemd at a reload, or a kubelet with the feature gate MemoryQoS and memoryReservationPolicy None"
	case kubelets && found == 0:
		return "likely a kubelet with the feature gate MemoryQoS and memoryReservationPolicy None: turn the gate off"
	case kubelets:
		return "likely a kubelet with memoryReservationPolicy TieredReservation and sums of its own: turn the gate MemoryQoS off"
	case h.driver == cgroup.Systemd:
		return "likely systemd at a reload or a change of the slice"
	case h.level == cgroup.LevelPod:
		return "likely the kubelet at a resize of the pod, or another NRI plugin"
	}
	return "likely another agent on this node that manages memory"
}

// complaint keeps an error that comes back at every check from filling the log.
type complaint struct {
	text string
	last time.Time
}

// new tells whether an error is worth a line.
func (c *complaint) new(err error, now time.Time) bool {
	text := ""
	if err != nil {
		text = fmt.Sprint(err)
	}
	if text == c.text && now.Sub(c.last) < lineEvery {
		return false
	}
	c.text, c.last = text, now
	return text != ""
}
