// Package controlplane runs etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler as processes on this machine's loopback, for kubelets in
// guests: QEMU's user network shows the host's loopback to a guest as 10.0.2.2.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/ports"
)

const (
	loopback = "127.0.0.1"
	// HostSeenByGuests is the host's loopback as QEMU's user network shows it to a guest.
	HostSeenByGuests = "10.0.2.2"
	// Version is the release of Kubernetes that plugin/e2e/tools/kubernetes pins.
	Version = "v1.37.2"
	// OlderKubelet is the release of the kubelet that plugin/e2e/tools/kubelet136 pins.
	OlderKubelet = "v1.36.3"
	// TopologyAware is the scheduler with the plugin NodeResourceTopologyMatch: its program, and its name in pods.
	TopologyAware = "topology-aware"

	administrators = "system:masters"
	// startLimit bounds the start of one process, stopLimit its end after SIGTERM; a loaded machine needs a tenth of them.
	startLimit = 2 * time.Minute
	stopLimit  = 8 * time.Second
)

// Cluster is a running control plane.
type Cluster struct {
	// client speaks to the API server as the administrator, by path: Kubernetes' clientset would be compiled for each test of what
	// imports this package.
	client    rest.Interface
	dir       string
	bin       []string
	ca        *authority
	ports     [numberOfPorts]int
	processes []*process // in the order of their start
}

// The places of Cluster.ports.
const (
	etcdClients = iota
	etcdPeers
	apiServer
	manager
	scheduler
	kubelet
	topologyAware
	numberOfPorts
)

func (c *Cluster) port(of int) string { return strconv.Itoa(c.ports[of]) }

// KubeletPort is a port that was free when the cluster was prepared: the node's kubelet serves there.
func (c *Cluster) KubeletPort() int { return c.ports[kubelet] }

// SeenByGuests is the API server's address and port for a guest.
func (c *Cluster) SeenByGuests() string { return net.JoinHostPort(HostSeenByGuests, c.port(apiServer)) }

// process is one component.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// New prepares a control plane: its certificates, and ports that are free now.
// The binaries are in the folders bin; files and logs go to dir.
func New(bin []string, dir string) (*Cluster, error) {
	c := &Cluster{dir: dir, bin: bin}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("prepare the control plane: %w", err)
	}
	var err error
	for i := range c.ports {
		if c.ports[i], err = ports.Free(); err != nil {
			return nil, err
		}
	}
	if c.ca, err = newAuthority(); err != nil {
		return nil, err
	}
	return c, c.ca.files(dir, c.url(loopback))
}

// Start starts the components and waits until pods can be created. Stop must be called, also after an error.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if err := c.startManagers(); err != nil {
		return err
	}
	return c.wait(ctx, "the default service account", func(ctx context.Context) error {
		return c.client.Get().AbsPath("/api/v1/namespaces/default/serviceaccounts/default").Do(ctx).Error()
	})
}

func (c *Cluster) url(host string) string {
	return "https://" + net.JoinHostPort(host, c.port(apiServer))
}

func (c *Cluster) startEtcd() error {
	client, peer := "http://"+net.JoinHostPort(loopback, c.port(etcdClients)), "http://"+net.JoinHostPort(loopback, c.port(etcdPeers))
	return c.start("etcd", "--name=e2e", "--data-dir="+filepath.Join(c.dir, "etcd"), "--logger=zap", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=e2e="+peer)
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	err := c.start("kube-apiserver", "--etcd-servers=http://"+net.JoinHostPort(loopback, c.port(etcdClients)),
		"--bind-address="+loopback, "--advertise-address="+loopback, "--secure-port="+c.port(apiServer), "--endpoint-reconciler-type=none",
		"--tls-cert-file=apiserver.crt", "--tls-private-key-file=apiserver.key", "--client-ca-file=ca.crt",
		"--kubelet-client-certificate=kubelet-client.crt", "--kubelet-client-key=kubelet-client.key", "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file=sa.key", "--service-account-key-file=sa.key",
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
	if err != nil {
		return err
	}
	config, err := apiserver.Config(c.AdminKubeconfig())
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	if c.client, err = apiserver.NewClient(config, corev1.SchemeGroupVersion); err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	return c.wait(ctx, "kube-apiserver", func(ctx context.Context) error {
		return c.client.Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func (c *Cluster) startManagers() error {
	if err := c.startScheduler("kube-scheduler", scheduler, ""); err != nil {
		return err
	}
	const conf = "controller-manager.conf"
	return c.start("kube-controller-manager", "--kubeconfig="+conf, "--authentication-kubeconfig="+conf, "--authorization-kubeconfig="+conf,
		"--bind-address="+loopback, "--secure-port="+c.port(manager), "--leader-elect=false", "--use-service-account-credentials",
		"--root-ca-file=ca.crt", "--service-account-private-key-file=sa.key",
		"--kube-api-qps=2000", "--kube-api-burst=2000")
}

// startScheduler starts a scheduler with more lines of configuration and more flags.
func (c *Cluster) startScheduler(name string, port int, more string, flags ...string) error {
	const conf = "scheduler.conf"
	file := name + ".yaml"
	configuration := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\n" +
		"clientConnection: {kubeconfig: " + conf + ", qps: 2000, burst: 2000}\n" + more
	if err := os.WriteFile(filepath.Join(c.dir, file), []byte(configuration), 0o600); err != nil {
		return fmt.Errorf("configure the scheduler: %w", err)
	}
	return c.start(name, append([]string{"--config=" + file, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf,
		"--bind-address=" + loopback, "--secure-port=" + c.port(port)}, flags...)...)
}

// start starts a component, whose output goes to a log in the cluster's folder.
func (c *Cluster) start(name string, args ...string) error {
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	program, err := c.program(name)
	if err != nil {
		return err
	}
	p := &process{name: name, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = c.dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // Setpgid: an interrupt ends them in Stop's order
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	c.processes = append(c.processes, p)
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// AdminKubeconfig is the path of the administrator's kubeconfig on the host.
func (c *Cluster) AdminKubeconfig() string { return filepath.Join(c.dir, "admin.conf") }

// program finds a component's binary.
func (c *Cluster) program(name string) (string, error) {
	for _, folder := range c.bin {
		if file := filepath.Join(folder, name); exists(file) {
			return file, nil
		}
	}
	return "", fmt.Errorf("start %s: no such program in %v", name, c.bin)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// wait waits until check succeeds, as long as every process runs.
func (c *Cluster) wait(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		for _, p := range c.processes {
			select {
			case <-p.done:
				return fmt.Errorf("wait for %s: %s ended with %v; see %s", what, p.name, p.cmd.ProcessState, filepath.Join(c.dir, p.name+".log"))
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(err, ctx.Err()))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Stop ends the components. The API server must be gone before etcd is, or it hangs.
func (c *Cluster) Stop() {
	for i := len(c.processes) - 1; i >= 0; i-- {
		p := c.processes[i]
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(stopLimit):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	c.processes = nil
}

// Node holds what a kubelet needs to join, and what the tests beside it need.
type Node struct {
	// CA is the certificate of the cluster's authority, PEM.
	CA []byte
	// Serving is the kubelet's certificate for its own port.
	Serving Identity
	// Kubelet and Admin are kubeconfigs for a guest: the node's own rights, and all.
	Kubelet, Admin []byte
}

// Join issues the identity of a node in a guest.
func (c *Cluster) Join(name string) (*Node, error) {
	n := &Node{CA: c.ca.pem}
	var err error
	n.Serving, err = c.ca.issue(subject{name: "system:node:" + name, group: "system:nodes", addresses: []string{loopback, "10.0.2.15"}, hosts: []string{name}})
	if err != nil {
		return nil, err
	}
	server := c.url(HostSeenByGuests)
	if n.Kubelet, err = c.ca.kubeconfig(server, subject{name: "system:node:" + name, group: "system:nodes"}); err != nil {
		return nil, err
	}
	n.Admin, err = c.ca.kubeconfig(server, subject{name: "admin", group: administrators})
	return n, err
}
