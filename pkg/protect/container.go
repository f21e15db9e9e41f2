package protect

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// ContainerKnobs are values to be written to a running container's own cgroup.
type ContainerKnobs struct {
	Cgroup string // from PodPath.Container
	Driver cgroup.Driver
	// Values: nil leaves a file alone; Max for High and 0 for Min and Low take it back.
	Values memoryqos.Values
	// Mems is cpuset.mems; empty leaves it alone.
	Mems string
}

// SetContainer writes to a running container, to crun's inner cgroup too, for runtimes that cannot be asked to. The levels
// above must have been raised before. A cgroup that is gone is an error that is fs.ErrNotExist.
//
// It holds no lock while it writes: kernels before 6.17 reclaim what is above a smaller memory.high before the write returns,
// and no create may wait for that.
func (p *Protector) SetContainer(_ context.Context, c ContainerKnobs) error {
	unit := p.unit(c.Cgroup, c.Driver)
	var errs []error
	properties := make(map[cgroup.Knob]uint64, len(knobs))
	values := [...]*uint64{c.Values.Min, c.Values.Low, c.Values.High}
	for i, v := range values {
		if v != nil {
			p.note(Entry{Cgroup: c.Cgroup, Knob: knobs[i], Unit: unit})
			properties[knobs[i]] = *v
		}
	}
	if c.Mems != "" {
		nodes, err := nodeset.Parse(c.Mems)
		if err != nil {
			return err
		}
		p.note(Entry{Cgroup: c.Cgroup, Knob: cgroup.CpusetMems, Unit: unit})
		properties[cgroup.CpusetMems] = uint64(nodes)
	}
	leaves := p.tree.Leaves(c.Cgroup)
	for i, v := range values {
		if v == nil {
			continue
		}
		err := setLeaves(p.tree, leaves, knobs[i], *v)
		if err == nil && *v == initial[i] && unit == "" {
			p.forget(c.Cgroup, knobs[i])
		}
		errs = append(errs, err)
	}
	if c.Mems != "" {
		for _, leaf := range leaves {
			errs = append(errs, p.tree.SetMems(leaf, c.Mems))
		}
	}
	err := errors.Join(errs...)
	if unit != "" && len(properties) > 0 && err == nil {
		p.systemd.set(c.Cgroup, unit, properties)
	}
	return err
}

// setLeaves writes a value to a container's cgroups, outer first; protection that is lowered, inner first.
func setLeaves(t *cgroup.Tree, leaves []string, knob cgroup.Knob, bytes uint64) error {
	if before, err := t.Get(leaves[0], knob); err == nil && bytes < before {
		leaves = slices.Clone(leaves)
		slices.Reverse(leaves)
	}
	for _, leaf := range leaves {
		if err := t.Set(leaf, knob, bytes); err != nil && !(errors.Is(err, fs.ErrNotExist) && len(leaves) > 1) {
			return err
		}
	}
	return nil
}
