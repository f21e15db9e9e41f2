package kubelet

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// RequestLimit bounds one request to the runtime, and one wish of a test to the kubelet, on a slow machine.
const RequestLimit = 5 * time.Minute

// Node is what can be seen of this guest's pods, whoever made them.
type Node struct {
	Paths
	Plan    setup.Plan
	Runtime cri.RuntimeServiceClient
	Images  cri.ImageServiceClient
}

// NewNode connects to the runtime and waits until it is ready.
func NewNode(ctx context.Context, plan setup.Plan) (*Node, error) {
	conn, err := grpc.NewClient("unix://"+plan.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))) // a runtime that restarts is waited for
	if err != nil {
		return nil, fmt.Errorf("connect to the runtime: %w", err)
	}
	n := &Node{Paths: Paths{Driver: plan.Driver}, Plan: plan, Runtime: cri.NewRuntimeServiceClient(conn), Images: cri.NewImageServiceClient(conn)}
	if err := n.WaitReady(ctx); err != nil {
		return nil, err
	}
	_, err = n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: plan.Image()}})
	if err != nil && plan.Runtime == setup.CRIO { // the others got it from a file
		return nil, fmt.Errorf("pull %s: %w", plan.Image(), err)
	}
	return n, nil
}

// WaitReady waits until the runtime says that it can run pods. The network is
// no part of it: all pods use the host's.
func (n *Node) WaitReady(ctx context.Context) error {
	var last error
	for {
		response, err := n.Runtime.Status(ctx, &cri.StatusRequest{}, grpc.WaitForReady(false))
		last = err
		if err == nil {
			for _, c := range response.GetStatus().GetConditions() {
				if c.GetType() == "RuntimeReady" && c.GetStatus() {
					return nil
				}
			}
			last = fmt.Errorf("conditions %v", response.GetStatus().GetConditions())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the runtime does not get ready: %w", last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Version is the runtime's name and version.
func (n *Node) Version(ctx context.Context) (string, error) {
	v, err := n.Runtime.Version(ctx, &cri.VersionRequest{})
	return v.GetRuntimeName() + " " + v.GetRuntimeVersion(), err
}

// Exited reports whether a container has ended, and how: its exit status and the reason.
func (n *Node) Exited(ctx context.Context, p *Pod, name string) (string, bool) {
	response, err := n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.IDs[name]})
	if err != nil || response.GetStatus().GetState() != cri.ContainerState_CONTAINER_EXITED {
		return "", false
	}
	return fmt.Sprintf("%d %s", response.GetStatus().GetExitCode(), response.GetStatus().GetReason()), true
}

// WaitExit waits until a container has ended and returns its exit status and the reason.
func (n *Node) WaitExit(ctx context.Context, p *Pod, name string) (string, error) {
	for {
		if how, exited := n.Exited(ctx, p, name); exited {
			return how, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the end of %s/%s: %w", p.Name, name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Exec runs a command in a container and returns what it printed and its exit status.
func (n *Node) Exec(ctx context.Context, p *Pod, name string, command ...string) (string, int, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestLimit)
	defer cancel()
	response, err := n.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: p.IDs[name], Cmd: command, Timeout: int64(RequestLimit.Seconds())})
	if err != nil {
		return "", -1, fmt.Errorf("run %v in %s/%s: %w", command, p.Name, name, err)
	}
	return string(response.GetStdout()) + string(response.GetStderr()), int(response.GetExitCode()), nil
}

// HasImage reports whether the runtime can make containers of an image.
func (n *Node) HasImage(ctx context.Context, image string) bool {
	response, err := n.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
	return err == nil && response.GetImage() != nil
}

// RemoveImage removes an image from the runtime.
func (n *Node) RemoveImage(ctx context.Context, image string) error {
	if _, err := n.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
		return fmt.Errorf("remove image %s: %w", image, err)
	}
	return nil
}

// WaitOutput waits for a line of a container's output.
func (n *Node) WaitOutput(ctx context.Context, p *Pod, name, line string) error {
	for {
		out := n.Output(p, name)
		if strings.Contains("\n"+out, "\n"+line+"\n") {
			return nil
		}
		if how, exited := n.Exited(ctx, p, name); exited && !strings.Contains("\n"+n.Output(p, name), "\n"+line+"\n") {
			return fmt.Errorf("%s/%s ended (%s) before %q; it said %q", p.Name, name, how, line, out)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s/%s did not say %q but %q: %w", p.Name, name, line, out, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
