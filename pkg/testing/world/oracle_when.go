package world

import (
	"fmt"
	"maps"
	"time"
)

// bound is by when a promise holds.
type bound struct {
	within time.Duration // of what changed; 0 has an oracle that looks for itself
	// delays says for how long after a fault the promise need not hold: as long as what the fault kept from the daemon takes to be made good. A
	// kind that is not here delays nothing.
	delays map[string]time.Duration
}

// For so long after a fault of a kind promises about cgroups need not hold: a look that failed is tried again with the next period of 10 s,
// a connection after 2 s at most.
var (
	away = map[string]time.Duration{DaemonKilled: 5 * time.Second, DaemonEnds: 5 * time.Second, DaemonReplaced: 5 * time.Second, DaemonFrozen: 2 * time.Second, RuntimeRestarted: 5 * time.Second,
		NRIAway: 5 * time.Second}
	kernelSlow = map[string]time.Duration{SlowReads: 5 * time.Second, SlowWrites: 10 * time.Second, HangingWrites: 2 * time.Second, FailingWrites: 12 * time.Second,
		WatchesRefused: 12 * time.Second, LateAnswers: 5 * time.Second, OpensFail: 12 * time.Second, OCIFails: 12 * time.Second}
	changed = map[string]time.Duration{NewConfig: 0, Reset: 0, RolledBack: 0}
	disk    = map[string]time.Duration{DiskHangs: 2 * time.Second, DiskFails: 30 * time.Second} // durable tries again after 30 s at most
	// A dry run looks every 10 s at what systemd has not confirmed.
	unconfirmed = map[string]time.Duration{SystemdHangs: 12 * time.Second, SystemdAway: 12 * time.Second, DaemonReload: 12 * time.Second}
	// The periodic check finds out within 10 s what no event has told of: a pod's end, and a claim that was another's.
	checked = each(12*time.Second, away)
	// A pod that ended without its driver of claims loses its cgroup up to 10 s after the driver is back, and the next check finds it gone.
	unseen = each(25*time.Second, away)
	reread = map[string]time.Duration{APIAway: 12 * time.Second, APIHangs: 12 * time.Second, APIRefuses: 12 * time.Second, APILags: 12 * time.Second}
	// After a failure client-go's reflector pauses for up to 30 s, and as long again by chance (tools/cache/reflector.go): before a watch, and
	// before the list that follows it if what it continues has expired.
	silence = map[string]time.Duration{PodAPISilent: 0, APIAway: 2 * time.Minute, APIHangs: time.Minute, APIRefuses: 2 * time.Minute, APILags: time.Minute, APIExpires: time.Minute}
)

// promises are those that something delays.
var promises = map[Promise]bound{
	asAsked:   {time.Second, together(away, kernelSlow, silence, map[string]time.Duration{DiskHangs: 2 * time.Second})},
	protected: {time.Second, together(away, kernelSlow, silence, map[string]time.Duration{DiskHangs: 2 * time.Second})},
	untouched: {time.Second, together(away, kernelSlow, unconfirmed, map[string]time.Duration{DiskHangs: 2 * time.Second})},
	givenBack: {2 * time.Second, together(unseen, kernelSlow, silence, map[string]time.Duration{DiskHangs: 2 * time.Second})},
	allocated: {time.Second, together(away, kernelSlow, disk)},
	confined:  {time.Second, together(away, kernelSlow, disk)},
	fits:      {time.Second, together(away, kernelSlow, disk)},
	released:  {time.Second, together(away, kernelSlow, disk)},
	keeps:     {time.Second, together(away, disk)},
	initsFree: {5 * time.Second, together(away, kernelSlow, disk, silence)},
	freed:     {5 * time.Second, together(kernelSlow, disk, silence, unseen)},

	// What others have overwritten is repaired as it becomes known. A pass reads no pods of others, which have had no values before a new configuration.
	covered: {0, together(away, kernelSlow, unconfirmed, map[string]time.Duration{Overwritten: 2 * time.Second, NewConfig: time.Second, RolledBack: time.Second})},

	onDisk:       {0, together(away, disk)},
	beforeAnswer: {0, together(away, disk, map[string]time.Duration{OCIFails: 0})},
	upToThen:     {0, aMinute(away, kernelSlow, changed, silence, disk)},
	granted:      {0, aMinute(away, kernelSlow, changed, silence, disk)},
	beforeWrite:  {0, together(away, disk)},
	answered:     {0, aMinute(away, kernelSlow)},
	besideDisk:   {0, map[string]time.Duration{DiskHangs: 2 * time.Second}},

	// A daemon whose disk hangs says what it knows once that answers, if it still runs then.
	verdictEach: {0, aMinute(away, kernelSlow, changed, silence, map[string]time.Duration{QueueOverflow: 0, DiskFails: 0})},
	soonSaid:    {3 * time.Second, together(kernelSlow, disk)},
	kept:        {0, map[string]time.Duration{DiskHangs: time.Minute}},
	blamed:      {0, aMinute(away, kernelSlow, changed, silence, map[string]time.Duration{QueueOverflow: 0, DiskFails: 0, Overwritten: 0})},
	reclaimed:   {0, aMinute(away, kernelSlow, changed, silence, disk, map[string]time.Duration{QueueOverflow: 0, Overwritten: 0, SlowReclaim: 0})},
	makersFirst: {0, aMinute(away, kernelSlow, changed, silence, disk, map[string]time.Duration{QueueOverflow: 0, Overwritten: 0})},
	remembered:  {0, aMinute(away, kernelSlow, changed, silence, disk, map[string]time.Duration{QueueOverflow: 0})},
	dated:       {0, map[string]time.Duration{DaemonFrozen: 0, OpensFail: 0, SlowReads: 0, LateAnswers: 0, SlowWrites: 0, HangingWrites: 0, WatchesRefused: 0, QueueOverflow: 0}},

	connected: {0, away},
	knows:     {time.Second, together(away, kernelSlow, map[string]time.Duration{DiskHangs: 2 * time.Second})},

	lowered:        {0, aMinute(away, kernelSlow, changed, silence, disk, map[string]time.Duration{QueueOverflow: 0, Overwritten: 0, SlowReclaim: 0})},
	onClaim:        {time.Second, together(kernelSlow, disk, checked, reread)},
	inPlace:        {time.Second, together(away, kernelSlow, disk)},
	claimReleased:  {time.Second, nil},
	claimAnswered:  {0, aMinute(away, kernelSlow, silence, disk, map[string]time.Duration{KubeletRestarted: 0})},
	claimPublished: {0, nil},

	scored: {0, aMinute(away, kernelSlow, changed, silence, disk)},

	standing:            {0, aMinute(away, map[string]time.Duration{OpensFail: 0, SlowReads: 0, SlowWrites: 0, FailingWrites: 0, WatchesRefused: 0, QueueOverflow: 0, DiskFails: 0, LateAnswers: 0, SlowReclaim: 0}, changed, silence)},
	standingBesideHangs: {0, map[string]time.Duration{HangingWrites: time.Minute}},
	neverThrottles:      {0, aMinute(away, kernelSlow, changed, silence, disk, map[string]time.Duration{QueueOverflow: 0})},
	counts:              {0, map[string]time.Duration{Reset: 0}},
}

// What is promised where a part of what may go wrong has: these are asked for what delays them only.
const (
	kept                Promise = "what the disk is to have is kept until it takes it"
	standingBesideHangs Promise = "no container stands still because writes of others hang"
	connected           Promise = "what changes is seen as it does"
	counts              Promise = "memory.events has counted since the container's start"
)

func together(some ...map[string]time.Duration) map[string]time.Duration {
	all := map[string]time.Duration{}
	for _, delays := range some {
		maps.Copy(all, delays)
	}
	return all
}

func aMinute(some ...map[string]time.Duration) map[string]time.Duration {
	return each(time.Minute, some...)
}

func each(delay time.Duration, some ...map[string]time.Duration) map[string]time.Duration {
	delays := together(some...)
	for kind := range delays {
		delays[kind] = delay
	}
	return delays
}

// finding is something that is not as promised.
type finding struct {
	promise Promise
	what    string
}

// inTime has oracles look at what must hold within a bound, each second.
func (n *simulation) inTime() {
	before := n.findings
	n.findings = map[finding]time.Time{}
	see := func(p Promise, what, format string, args ...any) {
		this, now := finding{p, what}, time.Now()
		since, known := before[this]
		if !known {
			since = now
		}
		n.findings[this] = since
		if since = latest(since, n.trouble.calm(p, now)); now.Sub(since) > promises[p].within {
			n.broken(p, "since %s: %s %s", since.Sub(n.began).Round(time.Second), what, fmt.Sprintf(format, args...))
		}
	}
	n.verdictFile()
	n.valuesAsAsked(see)
	n.whereAllocated(see)
	n.keepsAllocations(see)
	n.onlyTheLiving(see)
	n.pendingResizes(see)
	n.onClaims(see)
	n.claimsReleased(see)
	n.claimsKept(see)
	n.levels()
}

// seer is told of what is not as promised, at every look.
type seer func(p Promise, what, format string, args ...any)

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
