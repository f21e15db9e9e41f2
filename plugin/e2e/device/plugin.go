// Package device stands in for the software of a device's vendor in a guest: a device plugin, a DRA driver and a CDI specification,
// all of which give containers device nodes that the guest has.
package device

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// NoNode is the NUMA node of devices whose plugin reports no topology.
const NoNode = -1

// Plugin is the device plugin of one resource.
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
type Plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	Resource string
	// IDs are the devices, all of NUMA node Node.
	IDs  []string
	Node int64
	// Path is the device node, and CDI the CDI device, that a container gets; either may be empty.
	Path, CDI string
}

// Start serves the kubelet until ctx ends, and registers the resource with it.
func (p *Plugin) Start(ctx context.Context) error {
	name := strings.ReplaceAll(p.Resource, "/", "-") + ".sock"
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	if err := serve(ctx, server, filepath.Join(v1beta1.DevicePluginPath, name)); err != nil {
		return fmt.Errorf("start the device plugin of %s: %w", p.Resource, err)
	}
	conn, err := grpc.NewClient("unix://"+v1beta1.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("register %s: %w", p.Resource, err)
	}
	defer conn.Close()
	request := &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: name, ResourceName: p.Resource}
	if _, err := v1beta1.NewRegistrationClient(conn).Register(ctx, request, grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("register %s: %w", p.Resource, err)
	}
	return nil
}

// serve serves on a socket until ctx ends.
func serve(ctx context.Context, server *grpc.Server, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return err
	}
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(ctx, server.Stop)
	return nil
}

// GetDevicePluginOptions asks for none of the optional calls.
func (p *Plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices once: they never change.
func (p *Plugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	var devices []*v1beta1.Device
	for _, id := range p.IDs {
		device := &v1beta1.Device{ID: id, Health: v1beta1.Healthy}
		if p.Node != NoNode {
			device.Topology = &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: p.Node}}}
		}
		devices = append(devices, device)
	}
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate gives each container the device node or the CDI device.
func (p *Plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for range request.GetContainerRequests() {
		container := &v1beta1.ContainerAllocateResponse{}
		if p.Path != "" {
			container.Devices = []*v1beta1.DeviceSpec{{HostPath: p.Path, ContainerPath: p.Path, Permissions: "r"}}
		}
		if p.CDI != "" {
			container.CdiDevices = []*v1beta1.CDIDevice{{Name: p.CDI}}
		}
		response.ContainerResponses = append(response.ContainerResponses, container)
	}
	return response, nil
}
