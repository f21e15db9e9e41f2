package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cover"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

const (
	// mostPressure is the share of time, in percent, in which all tasks of a cgroup wait for memory (full avg10 of
	// memory.pressure) and beyond which no memory of it is moved: moving takes memory and time from tasks that lack both.
	mostPressure = 10
	// stepTimeout is how long the next step waits for the memory of the last one. It is not lost then: the write goes on.
	stepTimeout = time.Minute
	// journalTimeout bounds the wait for the disk before a step.
	journalTimeout = 5 * time.Second
)

// cure is what coverDeficits: On has under way. It belongs to the goroutine that samples.
type cure struct {
	calm  cover.Calm
	path  string    // the cgroup of the last step, while its memory may be on its way
	since time.Time // of that
}

// moving reports whether the last step's memory may still be on its way: what is sampled meanwhile says nothing about the next one.
func (a *Agent) moving() bool {
	c := &a.coverage.cure
	if c.path != "" && (a.protector.Settled(c.path) || a.now().Sub(c.since) > stepTimeout) {
		c.path = ""
	}
	return c.path != ""
}

// takeBack lets containers use the nodes again that have been calm for long enough.
func (a *Agent) takeBack(ctx context.Context, view *ledger.View, sample *cover.Sample, cgroups []cover.Cgroup) {
	c := &a.coverage.cure
	if c.calm == nil {
		c.calm = cover.Calm{}
	}
	over := c.calm.Over(sample.At, sample.Nodes, cgroups)
	for i := range cgroups {
		off := cgroups[i].Off
		if _, container := view.ContainerAt(cgroups[i].Path); container != nil && !off.Intersect(over).Empty() {
			a.keepOff(ctx, ledger.KeepOff{ID: container.ID, Nodes: off.Minus(over)})
		}
	}
}

// makeStep moves the memory of at most one container off the nodes in debt, and returns what is not moved and why.
func (a *Agent) makeStep(ctx context.Context, view *ledger.View, sample *cover.Sample, cgroups []cover.Cgroup) []cover.NotMoved {
	if !sample.InDebt() {
		return nil
	}
	if why := a.pressed(view.Kubepods); why != "" {
		return []cover.NotMoved{{Why: "no memory is moved while all pods wait for it: " + why}}
	}
	step, passed := cover.Next(sample.Nodes, cgroups, view.Config.Config.Migration.Most(), func(c *cover.Cgroup) string {
		return a.hinders(sample, c)
	})
	if step == nil {
		return passed
	}
	_, container := view.ContainerAt(step.Path)
	if container == nil {
		return passed
	}
	if err := a.noteBefore(ctx, step.Path); err != nil {
		return append(passed, cover.NotMoved{Path: step.Path, Why: err.Error()})
	}
	a.coverage.cure.path, a.coverage.cure.since = step.Path, a.now()
	a.keepOff(ctx, ledger.KeepOff{ID: container.ID, Nodes: step.Off, Bytes: step.Bytes})
	return passed
}

// hinders says why a container's memory is not moved; "" where it may be.
func (a *Agent) hinders(sample *cover.Sample, c *cover.Cgroup) string {
	usable, err := a.tree.EffectiveNodes(c.Path)
	if err != nil {
		return err.Error()
	}
	for _, n := range sample.Nodes {
		if !usable.Has(n.ID) && !c.Off.Has(n.ID) {
			return fmt.Sprintf("it has nodes of its own: its cpuset.mems.effective is %q", usable)
		}
	}
	return a.pressed(c.Path)
}

// pressed says that a cgroup waits for memory too much; "" where it does not, or the kernel does not say.
func (a *Agent) pressed(path string) string {
	pressure, known, err := a.tree.Pressure(path)
	if err != nil || !known || pressure.Full.Avg10 <= mostPressure {
		return ""
	}
	return fmt.Sprintf("full avg10 of its memory.pressure is %.1f, more than %d", pressure.Full.Avg10, mostPressure)
}

// noteBefore has the journal on disk know that a cgroup's cpuset.mems is written: nothing else on disk says that it is ours, where
// the container has no allocation.
func (a *Agent) noteBefore(ctx context.Context, path string) error {
	if a.journal == nil {
		return errors.New("there is no journal, so that rollback would not know of it")
	}
	a.journal.Note(protect.Entry{Cgroup: path, Knob: cgroup.CpusetMems})
	ctx, cancel := context.WithTimeout(ctx, journalTimeout)
	defer cancel()
	return a.journal.Flush(ctx)
}

// keepOff makes a step, or takes one back.
func (a *Agent) keepOff(ctx context.Context, event ledger.KeepOff) {
	effects := a.step(event)
	a.logNotes(effects.Notes)
	a.protect(ctx)
}

// useAllNodes takes all steps back before a dry run begins, which writes nothing.
func (a *Agent) useAllNodes(ctx context.Context) {
	for _, pod := range a.View().Pods {
		for i := range pod.Containers {
			if c := &pod.Containers[i]; c.KeptOff != nil {
				a.keepOff(ctx, ledger.KeepOff{ID: c.ID})
				_ = a.protector.Finish(ctx, c.Cgroup) // what fails is logged
			}
		}
	}
}

// coversDeficits reports whether memory is moved to cover deficits.
func coversDeficits(c config.Config) bool { return c.CoverDeficits == config.DeficitsOn && !c.DryRun }
