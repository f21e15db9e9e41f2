package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

// NewClient returns a client for the API group resource.k8s.io. The helper package of Kubernetes for DRA drivers would draw the
// clientset and its informers into the binary.
func NewClient(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // client-go's limit, five a second, would hold up pods: the kubelet and the publisher bound what is asked
	client, err := apiserver.NewClient(config, resourceapi.SchemeGroupVersion, &resourceapi.ResourceClaim{},
		&resourceapi.ResourceSlice{}, &resourceapi.ResourceSliceList{})
	if err != nil {
		return nil, fmt.Errorf("client for resource claims: %w", err)
	}
	return client, nil
}

// Ledger is what keeps the claims' allocations.
type Ledger interface {
	// PrepareClaim's error refuses a claim that does not fit, or that is in use by a pod that it is not reserved for.
	PrepareClaim(ctx context.Context, claim claims.Claim) error
	// UnprepareClaim's error refuses a claim that is in use.
	UnprepareClaim(ctx context.Context, uid string) error
	View() *ledger.View
}

// Options are what a Driver is made of.
type Options struct {
	// Client is of NewClient. It needs the rights to get resourceclaims, to get, watch, create and update resourceslices, and to get
	// nodes.
	Client rest.Interface
	// Name is the driver's, Node the Kubernetes node's, which is the name of the pool too.
	Name, Node string
	// CDI is the folder in which the runtime looks for CDI specifications that come and go.
	CDI     string
	Ledger  Ledger
	Machine machine.Machine
	Log     logrus.FieldLogger
}

// Driver prepares and unprepares claims. It speaks the kubelet's registration and DRA protocols on one socket.
type Driver struct {
	registration.UnimplementedRegistrationServer
	drav1.UnimplementedDRAPluginServer
	Options
	publisher *publisher
	specs     specifications
	changes   sync.Map // channels by the UID of a claim that is being changed, closed when that is over
	warned    sync.Map // errors' texts by the UID of a claim
}

// New returns a driver.
func New(o Options) *Driver {
	return &Driver{Options: o, publisher: newPublisher(o), specs: specifications{o.CDI, o.Name}}
}

// Unmapped says why the ResourceSlice does not say that claims count as requests of pods although the configuration wants it; "" if it
// does, or need not.
func (d *Driver) Unmapped() string {
	if u := d.publisher.unmapped.Load(); u != nil {
		return u.why
	}
	return ""
}

// requestTimeout bounds one question to the API server.
const requestTimeout = 10 * time.Second

// Run answers the kubelet on a socket in its folder plugins_registry, publishes what claims may have, and looks up the claims that were
// prepared before, until ctx ends.
func (d *Driver) Run(ctx context.Context, listener net.Listener) error {
	if err := os.MkdirAll(d.CDI, 0o755); err != nil {
		return fmt.Errorf("making the folder of CDI specifications: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { d.publisher.run(ctx) })
	group.Go(func() { d.settle(ctx) })
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, d)
	drav1.RegisterDRAPluginServer(server, d)
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	return nil
}

// GetInfo answers a kubelet that has found the socket.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DRAPlugin, Name: d.Name, SupportedVersions: []string{drav1.DRAPluginService}}, nil
}

// NotifyRegistrationStatus receives whether the kubelet has taken the driver.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if status.GetPluginRegistered() {
		d.Log.Info("the kubelet has registered the driver for resource claims")
	} else {
		d.Log.WithField("reason", status.GetError()).Error("the kubelet refuses the driver for resource claims")
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// NodePrepareResources allocates claims. One that fails does not stop the others.
func (d *Driver) NodePrepareResources(ctx context.Context, request *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	response := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, ref := range request.GetClaims() {
		claim, err := d.prepare(ctx, claims.Claim{UID: ref.GetUid(), Namespace: ref.GetNamespace(), Name: ref.GetName()})
		answer := &drav1.NodePrepareResourceResponse{Devices: d.devices(claim)}
		if err != nil {
			d.Log.WithError(err).Warn("a resource claim cannot be prepared")
			answer.Error = err.Error()
		}
		response.Claims[ref.GetUid()] = answer
	}
	return response, nil
}

// devices are what the kubelet tells the runtime about a claim.
func (d *Driver) devices(claim claims.Claim) []*drav1.Device {
	devices := make([]*drav1.Device, len(claim.Parts))
	for i, part := range claim.Parts {
		devices[i] = &drav1.Device{
			RequestNames: []string{part.Request}, PoolName: d.Node, DeviceName: claims.Device(part.Node),
			CdiDeviceIds: []string{claims.Ref{UID: claim.UID, Part: i}.CDI(d.Name)},
		}
	}
	return devices
}

// NodeUnprepareResources releases claims by our own record: the kubelet names them, and the objects may be gone.
func (d *Driver) NodeUnprepareResources(ctx context.Context, request *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
	response := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, ref := range request.GetClaims() {
		answer := &drav1.NodeUnprepareResourceResponse{}
		if err := d.unprepare(ctx, ref.GetUid()); err != nil {
			d.Log.WithError(err).Warn("a resource claim cannot be released")
			answer.Error = err.Error()
		}
		response.Claims[ref.GetUid()] = answer
	}
	return response, nil
}

// errGone is of a claim that this node has nothing of any more.
var errGone = errors.New("the claim is gone")

// prepare allocates a claim, then has the runtime know it. Until then nothing is on disk, and the kubelet tries again after a crash.
func (d *Driver) prepare(ctx context.Context, named claims.Claim) (claims.Claim, error) {
	var claim claims.Claim
	err := d.change(ctx, named.UID, func() (err error) {
		claim, err = d.allocate(ctx, named)
		return err
	})
	if err != nil {
		return named, fmt.Errorf("prepare claim %s: %w", &named, err)
	}
	return claim, nil
}

func (d *Driver) allocate(ctx context.Context, named claims.Claim) (claims.Claim, error) {
	claim, err := d.read(ctx, named)
	if err == nil {
		err = d.Ledger.PrepareClaim(ctx, claim)
	}
	if err == nil {
		err = d.specs.write(claim)
	}
	return claim, err
}

// read asks the API server what was allocated for a claim; errGone is among the errors of one that is not this node's any more.
func (d *Driver) read(ctx context.Context, named claims.Claim) (claims.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object := &resourceapi.ResourceClaim{}
	err := d.Client.Get().Namespace(named.Namespace).Resource("resourceclaims").Name(named.Name).Do(ctx).Into(object)
	switch {
	case apierrors.IsNotFound(err):
		return named, fmt.Errorf("%w: %w", errGone, err)
	case err != nil:
		return named, err
	case string(object.UID) != named.UID:
		return named, fmt.Errorf("%w: metadata.uid is %q, want %q: it was deleted and created again", errGone, object.UID, named.UID)
	case object.Status.Allocation == nil || len(object.Status.ReservedFor) == 0:
		return named, fmt.Errorf("%w: it is not allocated and reserved for a pod", errGone)
	}
	return readClaim(object, d.Name, d.Node)
}

func (d *Driver) unprepare(ctx context.Context, uid string) error {
	if err := d.change(ctx, uid, func() error { return d.release(ctx, uid) }); err != nil {
		return fmt.Errorf("release claim: %w", err)
	}
	return nil
}

// release frees a claim, then removes the record of it. One that is in use stays; the kubelet, or settle, tries again.
func (d *Driver) release(ctx context.Context, uid string) error {
	if err := d.Ledger.UnprepareClaim(ctx, uid); err != nil {
		return err
	}
	d.warned.Delete(uid)
	return d.specs.remove(uid)
}

// Reread brings the record of a claim to what the API server has: the pods that it is reserved for change without the kubelet's
// preparing it again.
func (d *Driver) Reread(ctx context.Context, claim claims.Claim) {
	err := d.change(ctx, claim.UID, func() error {
		_, err := d.specs.read(claim.UID)
		if errors.Is(err, fs.ErrNotExist) { // released meanwhile
			return nil
		}
		if _, err = d.allocate(ctx, claim); err != nil {
			return fmt.Errorf("claim %s: %w", &claim, err)
		}
		return nil
	})
	d.warn(claim.UID, "a resource claim cannot be read again", err)
}

// warn says once why a claim cannot be what the API server has, however often that is tried. nil is its end.
func (d *Driver) warn(uid, text string, err error) {
	if err == nil {
		d.warned.Delete(uid)
	} else if before, _ := d.warned.Swap(uid, err.Error()); before != err.Error() {
		d.Log.WithError(err).WithField("uid", uid).Warn(text)
	}
}

const (
	// settleRetry is the pause before claims are looked up again that could not be, or that were in use.
	settleRetry = 10 * time.Second
	// synchronizedEvery is how often the runtime's list of containers is looked for.
	synchronizedEvery = 100 * time.Millisecond
)

// settle looks all claims up that were prepared before, once after a start: those that ended unseen are released. Until the runtime has
// said which containers live, any claim may be in use. It returns when all are done or ctx ends.
func (d *Driver) settle(ctx context.Context) {
	for !d.Ledger.View().Synchronized() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(synchronizedEvery):
		}
	}
	for !d.settleAll(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(settleRetry + rand.N(settleRetry/5)):
		}
	}
}

func (d *Driver) settleAll(ctx context.Context) (done bool) {
	done = true
	for _, uid := range d.specs.uids() {
		err := d.settleOne(ctx, uid)
		d.warn(uid, "a resource claim from before this start keeps its allocation for now", err)
		done = done && err == nil
	}
	return done
}

func (d *Driver) settleOne(ctx context.Context, uid string) error {
	return d.change(ctx, uid, func() error {
		claim, err := d.specs.read(uid)
		switch {
		case errors.Is(err, fs.ErrNotExist): // released meanwhile
			return nil
		case errors.As(err, new(*fs.PathError)): // perhaps for now
			return err
		case err != nil: // damaged
			return d.release(ctx, uid)
		}
		if _, err = d.allocate(ctx, claim); !errors.Is(err, errGone) {
			return err
		}
		if err = d.release(ctx, uid); err == nil {
			d.Log.WithField("claim", claim.String()).Info("a resource claim ended unseen")
		}
		return err
	})
}
