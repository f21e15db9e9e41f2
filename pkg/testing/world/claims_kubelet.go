package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// driverTime is how long the kubelet waits for a driver (defaultClientCallTimeout in pkg/kubelet/cm/dra/plugin/dra_plugin.go).
	driverTime = 45 * time.Second
	// wipeTime is how long after it has lost a driver the kubelet deletes its slices (defaultWipingDelay).
	wipeTime = 30 * time.Second
)

// What is done to a node with claims, in a moment.
const (
	KubeletRestarted   = "kubelet restarted"        // it deletes the driver's slices
	ClaimedPodsDeleted = "pods with claims deleted" // and waited for
)

// endClaimed deletes the pods that have claims. It returns how many there are.
func (k *Kubelet) endClaimed() (left int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.living {
		if len(p.claims) > 0 {
			p.deleted.Store(true)
			p.wake()
			left++
		}
	}
	return left
}

// driverSocket is the socket in the kubelet's folder of plugins on which one life of the daemon is the driver.
type driverSocket struct {
	*admin
	listens atomic.Bool
}

func (l *life) listen(path string) (net.Listener, error) {
	if strings.HasSuffix(path, claimDriver+".sock") {
		l.driver.listens.Store(true)
		return l.driver, nil
	}
	return l.admin, nil
}

// cdi is in the state folder, so that a life that was killed writes no more.
func (l *life) cdi() string { return filepath.Join(l.state, "cdi") }

// dialDriver connects to the driver.
func (l *life) dialDriver(ctx context.Context, t *trouble) (net.Conn, error) {
	if !l.driver.listens.Load() || l.killed.Load() {
		return nil, unix.ECONNREFUSED
	}
	daemon, kubelet := newSockets()
	select {
	case l.driver.clients <- thawed{daemon, t}:
		return kubelet, nil
	case <-l.driver.closed:
		return nil, unix.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// askDriver makes one call.
func (k *Kubelet) askDriver(call func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), driverTime)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///driver", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return k.driver(ctx) }))
	must(err)
	defer conn.Close()
	return call(ctx, conn)
}

// followDriver registers each driver that it finds, and deletes the slices of one that is lost.
func (k *Kubelet) followDriver(ctx context.Context) {
	lost := time.Now()
	for registered := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-k.over:
			return
		case <-time.After(time.Second):
		}
		conn, err := k.driver(ctx)
		if err == nil {
			conn.Close()
		}
		switch {
		case err == nil && !registered:
			registered = k.askDriver(k.register) == nil
		case err != nil && registered:
			registered, lost = false, time.Now()
		case err != nil && time.Since(lost) > wipeTime:
			k.server.Drop(sliceName)
		}
	}
}

func (k *Kubelet) register(ctx context.Context, conn *grpc.ClientConn) error {
	info, err := registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	if err == nil && (info.GetType() != registration.DRAPlugin || info.GetName() != claimDriver || !slices.Contains(info.GetSupportedVersions(), drav1.DRAPluginService)) {
		err = fmt.Errorf("%v is no driver for claims", info)
	}
	if err == nil {
		_, err = registration.NewRegistrationClient(conn).NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true})
	}
	return err
}

// prepare has the driver prepare the pod's claims before a sandbox; false where it has to try again. What it knows to be prepared it seldom asks
// for again: only where it has lost its checkpoint.
func (p *pod) prepare() bool {
	for _, h := range p.heldClaims() {
		if len(h.devices) > 0 && p.draws.IntN(4) > 0 {
			continue
		}
		before := h.devices
		h.asked = true
		p.locked(func() {
			p.claims[h.Name] = h
			if other := p.sharing(h.uid); other != nil {
				h.devices, h.prepared = other.devices, other.prepared
				p.claims[h.Name] = h
			}
		})
		if before == nil && len(h.devices) > 0 { // it is prepared for another pod, and not again
			continue
		}
		began := time.Now()
		err := p.askDriver(func(ctx context.Context, conn *grpc.ClientConn) error {
			request := &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{{Namespace: p.spec.Namespace, Name: h.object, Uid: h.uid}}}
			response, err := drav1.NewDRAPluginClient(conn).NodePrepareResources(ctx, request)
			if err == nil && response.GetClaims()[h.uid].GetError() != "" {
				err = errors.New(response.Claims[h.uid].Error)
			}
			h.devices = nil
			for _, device := range response.GetClaims()[h.uid].GetDevices() {
				h.devices = append(h.devices, device.GetCdiDeviceIds()...)
			}
			return err
		})
		if err == nil && before != nil && !slices.Equal(before, h.devices) {
			err = fmt.Errorf("it has the devices %q, and had %q", h.devices, before)
		}
		h.prepared = time.Now()
		p.answered(began, h, err)
		if err != nil {
			return false
		}
		p.locked(func() { p.claims[h.Name] = h })
	}
	return true
}

// unprepare has the driver release the pod's claims, now and then late, until it has, or until another pod uses them.
func (p *pod) unprepare() {
	for _, h := range p.heldClaims() {
		if !h.asked {
			continue
		}
		if p.draws.IntN(4) == 0 {
			p.sleep(p.upTo(time.Minute))
		}
		p.until(func() error {
			shared := false
			if p.locked(func() { shared = p.sharing(h.uid) != nil }); shared {
				return nil
			}
			return p.askDriver(func(ctx context.Context, conn *grpc.ClientConn) error {
				request := &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{{Namespace: p.spec.Namespace, Name: h.object, Uid: h.uid}}}
				response, err := drav1.NewDRAPluginClient(conn).NodeUnprepareResources(ctx, request)
				if err == nil && response.GetClaims()[h.uid].GetError() != "" {
					err = errors.New(response.Claims[h.uid].Error)
				}
				if err == nil {
					h.released = true
					p.locked(func() { p.claims[h.Name] = h })
				}
				if err == nil && p.draws.IntN(8) == 0 {
					err = errors.New("the answer was lost")
				}
				return err
			})
		})
		p.locked(func() { delete(p.claims, h.Name) })
	}
}

// sharing is a claim as another pod has it, for which it was asked to be prepared; nil where there is none. The lock is held.
func (p *pod) sharing(uid string) *heldClaim {
	for _, other := range p.living {
		for _, h := range other.claims {
			if other != p && h.uid == uid && h.asked {
				return &h
			}
		}
	}
	return nil
}

// devices returns the CDI devices of a container's claims.
func (p *pod) devices(c *member) (all []*api.CDIDevice) {
	for _, name := range c.spec.Claims {
		for _, device := range p.claims[name].devices {
			all = append(all, &api.CDIDevice{Name: device})
		}
	}
	return all
}

// inject gives a container what the CDI specifications have for its devices. Only newer runtimes show plugins the devices' names.
func (r *ContainerRuntime) inject(c *api.Container) error {
	for _, device := range c.CDIDevices {
		variables, err := r.specified(device.Name)
		if err != nil {
			r.note(api.Event_CREATE_CONTAINER, c.Id, 0, err)
			return err
		}
		c.Env = append(c.Env, variables...)
	}
	if !r.nri.AtLeast(0, 12, 5) {
		c.CDIDevices = nil
	}
	return nil
}

// specified are the variables of a device in the files of the CDI folder.
func (r *ContainerRuntime) specified(device string) ([]string, error) {
	files, err := filepath.Glob(r.cdi() + "/*.json")
	must(err)
	for _, file := range files {
		var specification struct {
			Kind    string
			Devices []struct {
				Name           string
				ContainerEdits struct{ Env []string }
			}
		}
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &specification)
		}
		if err != nil {
			return nil, fmt.Errorf("CDI specification %s: %w", file, err)
		}
		for _, d := range specification.Devices {
			if specification.Kind+"="+d.Name == device {
				return d.ContainerEdits.Env, nil
			}
		}
	}
	return nil, fmt.Errorf("unresolvable CDI device %s", device)
}
