//go:build apiserver

package podinfo

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/ports"
)

// cluster is a real kube-apiserver over a real etcd, both started by the test from the programs that the environment names
// in KUBE_APISERVER and ETCD.
type cluster struct {
	dir, etcd, api string // etcd and api are their addresses
	server         *exec.Cmd
	client         *http.Client
}

const token = "test-token"

func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("KUBE_APISERVER") == "" || os.Getenv("ETCD") == "" {
		t.Fatal("set KUBE_APISERVER and ETCD to the programs' paths")
	}
	c := &cluster{dir: t.TempDir(), etcd: freeAddress(t), api: freeAddress(t),
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	etcd := start(t, os.Getenv("ETCD"), "--data-dir", filepath.Join(c.dir, "etcd"),
		"--listen-client-urls", "http://"+c.etcd, "--advertise-client-urls", "http://"+c.etcd, "--listen-peer-urls", "http://"+freeAddress(t))
	t.Cleanup(func() { end(etcd) })
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.file(t, "sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	c.file(t, "tokens.csv", token+`,admin,admin,"system:masters"`+"\n")
	return c
}

func (c *cluster) file(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", port)
}

func start(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.Command(program, args...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return command
}

func end(command *exec.Cmd) {
	command.Process.Kill()
	command.Wait()
}

func (c *cluster) start(t *testing.T) {
	t.Helper()
	key := filepath.Join(c.dir, "sa.key")
	_, port, _ := net.SplitHostPort(c.api)
	c.server = start(t, os.Getenv("KUBE_APISERVER"), "--etcd-servers", "http://"+c.etcd, "--cert-dir", filepath.Join(c.dir, "certs"),
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", port, "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", "https://test", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--token-auth-file", filepath.Join(c.dir, "tokens.csv"), "--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount")
	t.Cleanup(func() { end(c.server) })
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if _, err := c.do("GET", "/readyz", "", ""); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the API server does not become ready: %v", err)
		}
	}
}

// do sends YAML and returns the answer.
func (c *cluster) do(method, path, kind, text string) (string, error) {
	body, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(text, "\t", "  ")))
	if err != nil {
		return "", err
	}
	request, err := http.NewRequest(method, "https://"+c.api+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", kind)
	response, err := c.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	return string(answer), err
}

const (
	podsPath = "/api/v1/namespaces/default/pods"
	asJSON   = "application/json"
	asPatch  = "application/strategic-merge-patch+json"
)

func (c *cluster) must(t *testing.T, method, path, kind, text string) {
	t.Helper()
	if _, err := c.do(method, path, kind, text); err != nil {
		t.Fatal(err)
	}
}

// byName finds the one pod with a name.
func byName(a *APIServer, name string) *pods.Pod {
	a.pods.mu.Lock()
	defer a.pods.mu.Unlock()
	for _, pod := range a.pods.pods {
		if pod.Name == name {
			return pod
		}
	}
	return &pods.Pod{Containers: make([]pods.Container, 3)}
}

// A real API server's pods, with its own defaults, field selector, protobuf, streamed lists, resize and restart.
func TestRealAPIServer(t *testing.T) {
	c := newCluster(t)
	c.start(t)
	c.must(t, "POST", "/api/v1/nodes", asJSON, `
metadata: {name: node1}
status: {allocatable: {memory: 8Gi, cpu: 4}, conditions: [{type: Ready, status: "True"}]}`)
	create := func(text string) { t.Helper(); c.must(t, "POST", podsPath, asJSON, text) }
	create(`
metadata: {name: before}
spec:
	nodeName: node1
	initContainers:
	- {name: setup, image: i, resources: {requests: {memory: 1Gi}}}
	- {name: proxy, image: i, restartPolicy: Always, resources: {requests: {memory: 64Mi}}}
	containers: [{name: app, image: i, resources: {limits: {memory: 128Mi}}}]
`)
	create(`
metadata: {name: elsewhere}
spec: {nodeName: node2, containers: [{name: app, image: i}]}
`)
	api, err := NewAPIServer(&rest.Config{Host: "https://" + c.api, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "node1")
	if err != nil {
		t.Fatal(err)
	}
	r := follow(t, long, api)
	eventually(t, "the first list", func() bool { return api.Connected() && api.Len() == 1 })
	before := byName(api, "before")
	if got := before.Containers; len(got) != 3 || got[0].Request != gi || got[1].Request != 64*mi || got[2].Request != 128*mi {
		t.Errorf("got %+v", got)
	}

	create(`
metadata: {name: level}
spec:
	nodeName: node1
	resources: {limits: {memory: 1Gi, cpu: 1}}
	containers: [{name: app, image: i, resources: {requests: {memory: 100Mi}}}]
`)
	eventually(t, "a new pod", func() bool { p := byName(api, "level").PodRequest; return p != nil && *p == 100*mi })

	create(`
metadata: {name: static-node1, annotations: {kubernetes.io/config.mirror: hash1, kubernetes.io/config.hash: hash1, kubernetes.io/config.source: file}}
spec: {nodeName: node1, containers: [{name: app, image: i, resources: {requests: {memory: 32Mi}}}]}
`)
	answer, ok := r.Resolve(t.Context(), pods.Ref{UID: "hash1", Namespace: "default", Name: "static-node1"})
	if !ok || answer.Source != memoryqos.SourceAPIServer || !answer.Pod.Mirror || answer.Pod.Containers[0].Request != 32*mi {
		t.Errorf("the mirror of a static pod: got %+v, %t", answer.Pod, ok)
	}

	create(`
metadata: {name: resized}
spec: {nodeName: node1, containers: [{name: app, image: i, resources: {requests: {memory: 100Mi}}}]}
`)
	eventually(t, "the pod to resize", func() bool { return byName(api, "resized").Containers[0].Request == 100*mi })
	c.must(t, "PATCH", podsPath+"/resized/status", asPatch, `
status: {containerStatuses: [{name: app, image: i, imageID: i, ready: true, restartCount: 0, allocatedResources: {memory: 100Mi}, resources: {requests: {memory: 100Mi}}}]}`)
	c.must(t, "PATCH", podsPath+"/resized/resize", asPatch, `spec: {containers: [{name: app, resources: {requests: {memory: 200Mi}}}]}`)
	if got := byName(api, "resized").Containers[0].Request; got != 100*mi {
		t.Errorf("a resize that the kubelet has not admitted: got %d", got)
	}
	c.must(t, "PATCH", podsPath+"/resized/status", asPatch, `
status: {containerStatuses: [{name: app, image: i, imageID: i, ready: true, restartCount: 0, allocatedResources: {memory: 200Mi}, resources: {requests: {memory: 100Mi}}}]}`)
	eventually(t, "the admitted resize", func() bool { return byName(api, "resized").Containers[0].Request == 200*mi })

	c.must(t, "DELETE", podsPath+"/level", asJSON, "{apiVersion: v1, kind: DeleteOptions, gracePeriodSeconds: 0}")
	eventually(t, "a pod's end", func() bool { return byName(api, "level").Name == "" })

	end(c.server)
	eventually(t, "the loss of the server", func() bool { return !api.Connected() })
	if got, ok := r.Resolve(context.Background(), before.Ref); !ok || got.Source != memoryqos.SourceAPIServer {
		t.Errorf("a known pod while the server is away: got %+v, %t", got, ok)
	}
	c.start(t)
	create(`
metadata: {name: after}
spec: {nodeName: node1, containers: [{name: app, image: i, resources: {requests: {memory: 16Mi}}}]}
`)
	eventually(t, "a pod after the restart", func() bool { return byName(api, "after").Containers[0].Request == 16*mi && api.Connected() })
}
