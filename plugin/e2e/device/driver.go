package device

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver is a DRA driver with one device: each claim gets a CDI device.
type Driver struct {
	registration.UnimplementedRegistrationServer
	drav1.UnimplementedDRAPluginServer
	Name string
	// Pool and Device name the device as the ResourceSlice does, CDI as the runtime does.
	Pool, Device, CDI string

	once       sync.Once
	registered chan error
}

// Start serves the kubelet until ctx ends, and returns when the kubelet has registered the driver.
func (d *Driver) Start(ctx context.Context) error {
	d.registered = make(chan error, 1)
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, d)
	drav1.RegisterDRAPluginServer(server, d)
	if err := serve(ctx, server, "/var/lib/kubelet/plugins_registry/"+d.Name+".sock"); err != nil {
		return fmt.Errorf("start DRA driver %s: %w", d.Name, err)
	}
	select {
	case err := <-d.registered:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the kubelet does not register DRA driver %s: %w", d.Name, ctx.Err())
	}
}

// GetInfo answers a kubelet that has found the socket.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DRAPlugin, Name: d.Name, SupportedVersions: []string{drav1.DRAPluginService}}, nil
}

// NotifyRegistrationStatus ends Start.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	var err error
	if !status.GetPluginRegistered() {
		err = errors.New("the kubelet refuses DRA driver " + d.Name + ": " + status.GetError())
	}
	d.once.Do(func() { d.registered <- err })
	return &registration.RegistrationStatusResponse{}, nil
}

// NodePrepareResources names the CDI device for each claim.
func (d *Driver) NodePrepareResources(_ context.Context, request *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	response := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, claim := range request.GetClaims() {
		response.Claims[claim.GetUid()] = &drav1.NodePrepareResourceResponse{
			Devices: []*drav1.Device{{PoolName: d.Pool, DeviceName: d.Device, CdiDeviceIds: []string{d.CDI}}},
		}
	}
	return response, nil
}

// NodeUnprepareResources has nothing to undo.
func (d *Driver) NodeUnprepareResources(_ context.Context, request *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
	response := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, claim := range request.GetClaims() {
		response.Claims[claim.GetUid()] = &drav1.NodeUnprepareResourceResponse{}
	}
	return response, nil
}
