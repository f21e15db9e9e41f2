package cases

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// cluster runs the commands of an administrator, after a test has ended too.
type cluster struct{ t *testing.T }

func (c cluster) run(input string, command ...string) (string, error) {
	c.t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(c.t.Context()), command[0], command[1:]...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+setup.AdminConf, "HOME=/run/e2e")
	cmd.Dir, cmd.Stdin = "/run/e2e", strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// do runs a command that must succeed.
func (c cluster) do(command ...string) string {
	c.t.Helper()
	out, err := c.run("", command...)
	if err != nil {
		c.t.Fatalf("%s: %v:\n%s", strings.Join(command, " "), err, out)
	}
	return out
}

// ask runs a subcommand of the daemon in its pod.
func (c cluster) ask(question ...string) (string, error) {
	c.t.Helper()
	return c.run("", append([]string{"kubectl", "-n", "kube-system", "exec", "ds/" + daemon, "--", "nri-memory-manager"}, question...)...)
}

// walk is a page of docs whose commands are run.
type walk struct {
	cluster
	k    *kubelet.Kubelet
	page string
}

// follow runs the commands below a heading, on this node and with the packed chart and the image under test, and returns what they print.
func (c walk) follow(section string) string {
	c.t.Helper()
	page, err := os.ReadFile(filepath.Join(setup.Pages, c.page))
	if err != nil {
		c.t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "# "+section+"\n")
	text, _, _ = strings.Cut(text, "\n#")
	here := strings.NewReplacer("worker-1", setup.NodeName, "registry.k8s.io/pause:3.10", setup.Image, "deploy/helm/nri-memory-manager",
		setup.ReleasedChart+" --set image.tag="+setup.Version+" --set cgroupDriver="+string(c.k.Plan.Driver),
		"/var/lib/kubelet/config.yaml", kubelet.ConfigFile)
	var printed strings.Builder
	for line := range strings.Lines(text) {
		command, isCommand := strings.CutPrefix(line, "    ")
		if !isCommand {
			continue
		}
		command = here.Replace(strings.TrimSpace(command))
		out, err := c.run("", "sh", "-c", command)
		if err != nil && !strings.HasSuffix(command, " verify") { // which fails where it finds something, as a dry run
			c.t.Fatalf("%s: %v:\n%s", command, err, out)
		}
		printed.WriteString(out)
	}
	if !found || printed.Len() == 0 {
		c.t.Fatalf("docs/%s has no commands under %q", c.page, section)
	}
	return printed.String()
}

// TestChartInACluster is a newcomer's walk along docs/start.md, from a dry run to an untouched node. In between the scheduler places
// pods, the daemon is asked about them, and an update keeps what they have.
func TestChartInACluster(t *testing.T) {
	k := kubeletOf(t)
	importReleasedImage(t, k)
	c := walk{cluster{t}, k, "start.md"}
	t.Cleanup(func() {
		c.uninstall()
		_, _ = c.run("", "kubectl", "label", "node", setup.NodeName, daemon+"-")
		_, _ = c.run("", "kubectl", "delete", "pod", "pinned", "--ignore-not-found")
	})
	before := file(k.Kubepods(), "memory.min") // what the kubelet of another case has left
	if out := c.follow("Look"); !strings.Contains(out, "profile is Observe") {
		t.Errorf("verify does not say that this is a dry run:\n%s", out)
	}
	if got := file(k.Kubepods(), "memory.min"); got != before {
		t.Errorf("in the dry run memory.min of kubepods became %s, it was %s", got, before)
	}
	c.follow("Switch it on")
	if out := c.follow("The first pinned pod"); !strings.Contains(out, "default/pinned pinned (Guaranteed)\n  on node ") {
		t.Errorf("explain does not say where the pod is:\n%s", out)
	}

	pods := []*kubelet.Pod{
		guaranteed("database", 64*MiB, 16*MiB),
		{Name: "server", Containers: []kubelet.Container{{Name: "app", Request: 64 * MiB, Limit: 128 * MiB}}},
	}
	c.schedule(k, pods...)
	database, server := dirOf(t, k, pods[0], "app"), dirOf(t, k, pods[1], "app")
	if mems := file(database, "cpuset.mems"); mems != "0" && mems != "1" {
		t.Errorf("the Guaranteed container has cpuset.mems %q, want one node", mems)
	}
	const high = 127504384 // 64Mi + 0.9 × 64Mi in whole pages
	holdsValue(t, server, "memory.low", 64*MiB)
	holdsValue(t, server, "memory.high", high)
	holdsValue(t, k.Dir(pods[1]), "memory.low", 64*MiB)

	for _, question := range []struct {
		command []string
		want    string
	}{
		{[]string{"status"}, "default/database"},
		{[]string{"explain", "default/database"}, "Guaranteed"},
		{[]string{"verify"}, "nothing is wrong"},
	} {
		eventually(t, "the daemon answers "+question.command[0], func() string {
			out, err := c.ask(question.command...)
			if err != nil || !strings.Contains(out, question.want) {
				return out
			}
			return ""
		})
	}

	c.do("kubectl", "-n", "kube-system", "rollout", "restart", "ds/"+daemon)
	c.do("kubectl", "-n", "kube-system", "rollout", "status", "ds/"+daemon, "--timeout=12m")
	holdsValue(t, server, "memory.high", high)
	c.follow("Take it back")
	c.waitGone()
	untouched(t, k, pods...)
}

// uninstall removes what a walk may have left.
func (c walk) uninstall() {
	_, _ = c.run("", "helm", "uninstall", daemon, "--namespace", "kube-system", "--wait", "--ignore-not-found")
}

func (c walk) waitGone() {
	c.t.Helper()
	eventually(c.t, "the daemon's pod goes", func() string {
		left, err := c.k.Client.CoreV1().Pods("kube-system").List(c.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + daemon})
		if err != nil || len(left.Items) > 0 {
			return "it is still there"
		}
		return ""
	})
}

// TestMigrationInACluster walks along docs/migration.md, from the kubelet's Memory Manager and back to it, under a running pod.
func TestMigrationInACluster(t *testing.T) {
	config := func(policy string) kubelet.Config {
		return kubelet.Config{
			"kubeReserved": map[string]any{"memory": "44Mi"}, "evictionHard": map[string]any{"memory.available": "20Mi"},
			"memoryManagerPolicy": policy, "topologyManagerPolicy": "best-effort",
			"reservedMemory": []any{map[string]any{"numaNode": 0, "limits": map[string]any{"memory": "64Mi"}}},
		}
	}
	k := kubeletOf(t, config("Static"))
	importReleasedImage(t, k)
	c := walk{cluster{t}, k, "migration.md"}
	t.Cleanup(c.uninstall)
	pod := guaranteed("database", 64*MiB, 16*MiB)
	c.schedule(k, pod)
	const checkpoint = "/var/lib/kubelet/memory_manager_state"
	before, dir := allocated(t, checkpoint, []*kubelet.Pod{pod}), dirOf(t, k, pod, "app")
	node := file(dir, "cpuset.mems")
	if node != "0" && node != "1" {
		t.Fatalf("under the kubelet's manager cpuset.mems is %q, want one node", node)
	}

	if out := c.follow("Import"); !strings.Contains(out, pod.UID) {
		t.Errorf("the state that was imported does not have the pod:\n%s", out)
	}
	if err := k.Configure(t.Context(), config("None")); err != nil {
		t.Fatal(err)
	}
	if out := c.follow("Switch over"); !strings.Contains(out, "nothing is wrong") || !strings.Contains(out, "default/database") {
		t.Errorf("verify or status after the change:\n%s", out)
	}
	eventually(t, "the pod is protected", func() string {
		if number(t, dir, "memory.min") == 0 {
			return "memory.min is 0"
		}
		return ""
	})
	if got := file(dir, "cpuset.mems"); got != node {
		t.Errorf("cpuset.mems became %s, it was %s", got, node)
	}

	c.follow("Back")
	c.waitGone()
	exported, err := os.ReadFile("/run/e2e/memory_manager_state")
	if err != nil {
		t.Fatal(err)
	}
	k.Memory = exported
	defer func() { k.Memory = nil }()
	if err := k.Configure(t.Context(), config("Static")); err != nil {
		t.Fatal(err)
	}
	if after := allocated(t, checkpoint, []*kubelet.Pod{pod}); after != before {
		t.Errorf("the kubelet has\n%s\nit had\n%s", after, before)
	}
	if got := file(dir, "cpuset.mems"); got != node {
		t.Errorf("cpuset.mems became %s, it was %s", got, node)
	}
}

// schedule creates pods as a user does and waits until the scheduler has found the node and the kubelet has started them.
func (c cluster) schedule(k *kubelet.Kubelet, pods ...*kubelet.Pod) {
	c.t.Helper()
	var manifests strings.Builder
	for _, pod := range pods {
		object := pod.Object()
		object.UID, object.Status = "", corev1.PodStatus{}
		if err := json.NewEncoder(&manifests).Encode(object); err != nil {
			c.t.Fatal(err)
		}
		if err := k.Expect(pod); err != nil {
			c.t.Fatal(err)
		}
	}
	if out, err := c.run(manifests.String(), "kubectl", "apply", "-f", "-"); err != nil {
		c.t.Fatalf("kubectl apply: %v: %s", err, out)
	}
	for _, pod := range pods {
		if err := k.WaitStarted(c.t.Context(), pod); err != nil {
			c.t.Fatal(err)
		}
	}
}

// holdsValue waits until a kernel file holds a number.
func holdsValue(t *testing.T, dir, name string, want uint64) {
	t.Helper()
	eventually(t, name+" of "+strings.TrimPrefix(dir, kubelet.Root), func() string {
		if got := number(t, dir, name); got != want {
			return "it is " + file(dir, name)
		}
		return ""
	})
}
