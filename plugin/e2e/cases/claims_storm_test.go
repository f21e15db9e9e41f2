package cases

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// stormSeed is of the order, the number and the moments of the kills.
const stormSeed = 18

// claimStorm has pods with claims start while processes are killed.
type claimStorm struct {
	t      *testing.T
	k      *kubelet.Kubelet
	p      *plugin
	random *rand.Rand
	// between counts the kills at which a claim was prepared whose container had not started.
	claims, kills, between int
}

// rounds is 1, and 10 with FULL=1.
func (s *claimStorm) rounds() int {
	if s.k.Plan.Full {
		return 10
	}
	return 1
}

// round kills each of the three processes once, and with even odds another one right after it, while two pods start. Each pod must
// run with its claim.
func (s *claimStorm) round(round int) {
	victims := []struct {
		name string
		kill func()
	}{
		{"plugin", func() { s.p.kill(); s.p.restart() }},
		{"kubelet", func() {
			s.k.Kill(syscall.SIGKILL)
			if err := s.k.Start(s.t.Context()); err != nil {
				s.t.Error(err)
			}
		}},
		{"runtime", func() { endRuntime(s.t, s.k, syscall.SIGKILL) }},
	}
	for _, first := range s.random.Perm(len(victims)) {
		var pods []*kubelet.Pod
		for _, name := range []string{"a", "b"} {
			pod := guaranteed(fmt.Sprint(victims[first].name, round, name), claimed, 16*MiB)
			pod.Restart = corev1.RestartPolicyAlways // a kubelet that is killed before it has started a container takes it for one that ended
			createWithClaim(s.t, s.k, pod, claimTemplate)
			pods = append(pods, pod)
			s.claims++
		}
		eventually(s.t, "a claim is prepared", func() string {
			if len(specifications()) == 0 {
				return "no CDI specification"
			}
			return ""
		})
		dying := victims[first : first+1]
		if s.random.IntN(2) == 0 {
			dying = append(slices.Clone(dying), victims[(first+1+s.random.IntN(2))%len(victims)])
		}
		for _, victim := range dying {
			time.Sleep(time.Duration(s.random.IntN(2000)) * time.Millisecond)
			s.kills++
			if slices.ContainsFunc(pods, s.waits) {
				s.between++
			}
			victim.kill()
		}
		s.runs(pods)
		if err := s.k.RemoveAll(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
}

// waits reports whether a pod's claim is prepared and its container has not started: the pod's cgroup has the sandbox's at most.
func (s *claimStorm) waits(pod *kubelet.Pod) bool {
	if _, err := s.k.Get(s.t.Context(), pod); err != nil {
		return false // the kill is not counted
	}
	processes, _ := filepath.Glob(filepath.Join(s.k.Dir(pod), "*", "cgroup.procs"))
	return s.prepared(pod) && len(processes) < 2
}

// prepared reports whether there is a CDI specification of the pod's claim, whose name begins with the pod's.
func (s *claimStorm) prepared(pod *kubelet.Pod) bool {
	return slices.ContainsFunc(specifications(), func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), `"`+claimPrefix(pod))
	})
}

// claimPrefix begins the name of the claim that is made for a pod of createWithClaim.
func claimPrefix(pod *kubelet.Pod) string { return pod.Name + "-claim-" }

// runs waits until both pods run, each with its claim in the kernel where the scheduler has put it, and nothing else is claimed.
func (s *claimStorm) runs(pods []*kubelet.Pod) {
	s.t.Helper()
	for _, pod := range pods {
		eventually(s.t, pod.Name+" runs although processes were killed", func() string {
			object, err := s.k.Get(s.t.Context(), pod)
			if err != nil {
				return err.Error()
			}
			for _, container := range object.Status.ContainerStatuses {
				if container.State.Running != nil {
					return ""
				}
			}
			return fmt.Sprint(object.Status.Phase, object.Status.ContainerStatuses) // what was under way has failed, and is tried again
		})
		holdsClaim(s.t, s.k, pod, s.nodeOf(pod))
	}
	if got := s.p.claims(); len(got) != len(pods) {
		s.t.Errorf("claims %q are prepared, want those of %d pods", got, len(pods))
	}
}

// nodeOf is the NUMA node of the device that the scheduler has allocated to a pod's claim.
func (s *claimStorm) nodeOf(pod *kubelet.Pod) string {
	s.t.Helper()
	for _, claim := range claimsOf(s.t, s.k) {
		if allocation := claim.Status.Allocation; allocation != nil && strings.HasPrefix(claim.Name, claimPrefix(pod)) {
			return strings.TrimPrefix(allocation.Devices.Results[0].Device, "numa-")
		}
	}
	s.t.Errorf("pod %s has no claim that is allocated", pod.Name)
	return ""
}
