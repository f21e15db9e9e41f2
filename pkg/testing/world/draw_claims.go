package world

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// claims has the daemon be the driver for resource claims on half of the nodes, with pods that have some, and adds what goes wrong with them.
func (d drawer) claims(s *Scenario) {
	d.Rand = draws(s.Seed, "resource claims")
	if d.oneIn(2) || strings.Contains(s.Config, "memoryManagerPolicy: None") || strings.Contains(s.Config, "profile: QoS") || strings.Contains(s.Config, "profile: Observe") {
		return
	}
	dra := func() string {
		return fmt.Sprintf("dra: {enabled: true%s}\n", pick(d, "", ", shares: [{limits: {memory: 10%}}]", ", shares: [{limits: {memory: 20%}}]", ", shares: [{limits: {memory: 80%}}]", ", shares: [{limits: {memory: 3Gi}}]"))
	}
	mine := dra()
	s.Config += mine
	for i := range s.Faults {
		if s.Faults[i].Kind != NewConfig {
			continue
		}
		next := mine
		if d.IntN(6) > 0 {
			next = pick(d, mine, dra())
		}
		s.Faults[i].Target = strings.NewReplacer("memoryManagerPolicy: None\n", "", "profile: QoS\n", "").Replace(s.Faults[i].Target) + next
	}
	for i := range 3 + d.IntN(6) {
		s.Pods = append(s.Pods, d.claimed(fmt.Sprint("claimed", i)))
	}
	if d.oneIn(2) {
		s.Pods = append(s.Pods, d.heir(s.Pods[len(s.Pods)-1]))
	}
	for range 1 + d.IntN(3) {
		at, length := d.between(10*time.Second, d.length), Duration(d.between(time.Second, 2*time.Minute))
		s.Faults = append(s.Faults, Fault{At: d.when(at), Kind: pick(d, KubeletRestarted, APIAway, APIHangs, APIRefuses, DiskHangs, DiskFails), Length: length, Draw: d.Uint64()})
	}
	if d.oneIn(2) {
		s.Faults = append(s.Faults, Fault{At: d.when(d.between(time.Minute, d.length)), Kind: pick(d, DaemonKilled, DaemonEnds), Length: Duration(d.between(time.Second, time.Minute))})
	}
}

// heir is a pod that has the claims of another after it.
func (d drawer) heir(of Pod) Pod {
	p := of
	p.Name, p.At, p.End, p.Changes, p.Claims = "heir", d.when(time.Duration(of.At)+d.between(0, d.length/3)), 0, nil, slices.Clone(of.Claims)
	for i := range p.Claims {
		p.Claims[i].Of = of.Name
	}
	return p
}

// claimed draws a pod with claims. Its containers ask for as much as these have.
func (d drawer) claimed(name string) Pod {
	from := d.between(10*time.Second, d.length*3/4)
	p := Pod{Name: name, Namespace: pick(d, "shop", "data"), Class: pick(d, "Guaranteed", "Guaranteed", "Burstable"), Forced: d.oneIn(5), At: d.when(from)}
	if !d.oneIn(4) {
		p.End = d.when(from + d.between(time.Minute, d.length/2))
	}
	var bytes uint64
	var names []string
	for i := range pick(d, 1, 1, 1, 2) {
		claim := Claim{Name: fmt.Sprint("memory", i), Memory: uint64(32+d.IntN(700)) * hugePage, Nodes: pick(d, 0, 0, 0, 2), Hasty: d.oneIn(3)}
		if d.oneIn(4) {
			claim.Memory *= 4
		}
		bytes += claim.Memory * uint64(max(claim.Nodes, 1))
		p.Claims, names = append(p.Claims, claim), append(names, claim.Name)
	}
	add := func(name, kind string, limit uint64, claims []string) {
		c := Container{Name: name, Kind: kind, Request: limit, Limit: limit, Claims: claims}
		if p.Class == "Guaranteed" {
			c.CPUs = pick(d, 0, 1)
		}
		for range 1 + d.IntN(2) {
			c.Lives = append(c.Lives, d.program(c, kind))
		}
		p.Containers = append(p.Containers, c)
	}
	if d.oneIn(3) {
		add("init", "init", bytes/4, pick(d, names, nil))
	}
	apps := pick[uint64](d, 1, 1, 2)
	for i := range apps {
		add(fmt.Sprint("app", i), "app", bytes/apps, names)
	}
	if d.oneIn(4) {
		add("plain", "app", uint64(32+d.IntN(200))*mi, nil)
	}
	if d.oneIn(5) {
		p.Changes = append(p.Changes, Change{At: d.when(from + d.between(time.Second, d.length/2)), Kind: NewSandbox})
	}
	return p
}
