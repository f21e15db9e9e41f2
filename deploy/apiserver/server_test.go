package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	topology "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/generated/clientset/versioned"
	client "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/generated/clientset/versioned/typed/topology/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/needs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/ports"
)

// ready starts an API server and lets it know NodeResourceTopologies, as "kubectl apply -f crd.yaml" does.
func ready(t *testing.T, admin *rest.Config, server *exec.Cmd) *rest.Config {
	t.Helper()
	start(t, server)
	api, err := discovery.NewDiscoveryClientForConfig(admin)
	must(t, err)
	eventually(t, "the API server is ready", func() bool {
		_, err := api.RESTClient().Get().AbsPath("/healthz").DoRaw(t.Context())
		return err == nil
	})
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/k8stopologyawareschedwg/noderesourcetopology-api").Output()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "manifests", "crd.yaml"))
	must(t, err)
	definition, err := yaml.YAMLToJSON(text)
	must(t, err)
	must(t, api.RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
		SetHeader("Content-Type", "application/json").Body(definition).Do(t.Context()).Error())
	objects := objectsOf(t, admin)
	eventually(t, "NodeResourceTopologies are served", func() bool {
		_, err := objects.List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	return admin
}

// startEtcd returns its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	program := builtForGuests("debian/etcd/usr/bin/etcd")
	if program == "" {
		program = needs.Program(t, "etcd", "etcd-server")
	}
	url := "http://" + freeAddress(t)
	start(t, exec.Command(program, "--data-dir", t.TempDir(), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", "http://"+freeAddress(t)))
	return url
}

// start runs a program until the test's end.
func start(t *testing.T, program *exec.Cmd) *output {
	t.Helper()
	log := &output{}
	program.Stdout, program.Stderr = log, log
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, program.Start())
	t.Cleanup(func() {
		program.Process.Kill()
		program.Wait()
		if t.Failed() {
			t.Logf("output of %s:\n%s", program.Path, log)
		}
	})
	return log
}

// objectsOf is the published client of NodeResourceTopologies.
func objectsOf(t *testing.T, config *rest.Config) client.NodeResourceTopologyInterface {
	t.Helper()
	set, err := topology.NewForConfig(config)
	must(t, err)
	return set.TopologyV1alpha2().NodeResourceTopologies()
}

// writeKubeconfig writes a client's configuration for another process.
func writeKubeconfig(t *testing.T, path string, config *rest.Config) {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, InsecureSkipTLSVerify: config.Insecure}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: config.BearerToken,
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	must(t, clientcmd.WriteToFile(*file, path))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := ports.Free()
	must(t, err)
	return fmt.Sprint("127.0.0.1:", port)
}
