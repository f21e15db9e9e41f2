package memoryqos

import (
	"iter"
	"math"
)

// Pod gives the values of a pod's cgroup: Kubernetes' aggregate over what its containers get. There is no memory.high, as
// under a kubelet: a pod with a limit of its own has memory.max, and the stall guard gives room to containers only.
//
// What is added up are values, not requests: GuaranteedHeadroom takes its share from every container of a Guaranteed pod,
// and the pod and the parent cgroups carry what its containers really have. A container of the spec that does not live
// counts as if it did, so that the pod keeps its sum from its first container to its end, as the kubelet has it.
func (s Settings) Pod(p Pod) Values {
	if p.Class == BestEffort {
		return Values{}
	}
	p.Containers = s.planned(p)
	hard, soft := s.podProtection(p)
	return Values{Min: positive(hard), Low: positive(soft)}
}

// planned gives the containers that do not live the values that they would get. One without a limit of its own runs under
// the pod's.
func (s Settings) planned(p Pod) []PodContainer {
	all := make([]PodContainer, 0, len(p.Containers))
	for _, c := range p.Containers {
		if c.Values == nil {
			limit := add(c.Limit, c.Claimed)
			if c.Limit == 0 {
				limit = value(p.PodLimit)
			}
			values := s.Container(Container{Class: p.Class, Request: c.Request, Limit: limit, OwnLimit: &c.Limit}, c.Overrides)
			c.Values = &values
		}
		all = append(all, c)
	}
	return all
}

// podProtection sums up memory.min and memory.low. Overhead, claimed memory and a pod-level request belong to no container and go to
// the file of the pod's class. Claimed memory that is also part of a container's value counts once.
func (s Settings) podProtection(p Pod) (hard, soft uint64) {
	file, besides := s.reservation(p.Class, p.Overrides.Reservation), p.Overhead
	if p.PodRequest == nil {
		besides = add(besides, p.Claimed)
	}
	in := func(in Reservation, bytes *uint64, c PodContainer) uint64 {
		if in == file && p.PodRequest == nil {
			return value(bytes) - min(value(bytes), c.Mapped)
		}
		return value(bytes)
	}
	hard = sum(p.Containers, func(c PodContainer) uint64 { return in(ReserveMin, c.Values.Min, c) })
	soft = sum(p.Containers, func(c PodContainer) uint64 { return in(ReserveLow, c.Values.Low, c) })
	// Containers that claim more than their pod has share it in proportion to their claims.
	whole := p.most()
	hard = min(hard, whole)
	soft = min(soft, whole-hard)
	switch file {
	case ReserveMin:
		if p.PodRequest != nil {
			hard = *p.PodRequest - soft
		}
		hard = add(hard, besides)
	case ReserveLow:
		if p.PodRequest != nil {
			soft = *p.PodRequest - hard
		}
		soft = add(soft, besides)
	}
	return hard, soft
}

// most is the largest request that the pod can have, without overhead: its pod-level request replaces the sum over its
// containers, as in the kubelet, and the request of a Guaranteed pod is its limit.
func (p Pod) most() uint64 {
	switch {
	case p.PodRequest != nil:
		return *p.PodRequest
	case p.Class == Guaranteed && p.CgroupLimit > 0:
		return p.CgroupLimit
	}
	return math.MaxUint64
}

// Requested is the pod's own request, or else its containers' and its claims' together, in bytes and without overhead.
func (p Pod) Requested() uint64 {
	if p.PodRequest != nil {
		return *p.PodRequest
	}
	return add(p.Claimed, sum(p.Containers, func(c PodContainer) uint64 { return c.Request - min(c.Request, c.Mapped) }))
}

// sum is the peak of an amount over a pod's containers.
func sum(containers []PodContainer, amount func(PodContainer) uint64) uint64 {
	var p Peak
	for _, c := range containers {
		p.Add(c.Kind, amount(c))
	}
	return p.Bytes()
}

// Ancestors gives the values of the parents of the pods. kubepods and the system partition hold in memory.min what all their
// pods have in either file, so that no reclaim from the rest of the node reaches them, and in memory.low what they have in
// memory.low, because protection that one level lacks is lost for all below it.
func Ancestors(pods iter.Seq[PodValues]) Levels {
	var all, burstable, system, systemBurstable sums
	for p := range pods {
		all.add(p.Values)
		qos := &burstable
		if p.System {
			system.add(p.Values)
			qos = &systemBurstable
		}
		if p.Class == Burstable {
			qos.add(p.Values)
		}
	}
	return Levels{
		Kubepods: all.both(), Burstable: burstable.each(), System: system.both(), SystemBurstable: systemBurstable.each(),
	}
}

// sums are those of memory.min and memory.low over some pods.
type sums struct{ min, low uint64 }

func (s *sums) add(v Values) {
	s.min = add(s.min, value(v.Min))
	s.low = add(s.low, value(v.Low))
}

// each has every sum in its own file.
func (s sums) each() Values { return Values{Min: positive(s.min), Low: positive(s.low)} }

// both has the sum of both in memory.min.
func (s sums) both() Values { return Values{Min: positive(add(s.min, s.low)), Low: positive(s.low)} }

// value is what a file that is not set holds: 0.
func value(bytes *uint64) uint64 {
	if bytes == nil {
		return 0
	}
	return *bytes
}

// add saturates: hostile sums never wrap around to small ones.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
