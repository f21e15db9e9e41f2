package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// driver is the plugin's name as a driver for resource claims.
const driver = "memory.noderesource.dev"

// Where the API server has the objects of resource claims.
const (
	deviceClasses  = "/apis/resource.k8s.io/v1/deviceclasses"
	resourceSlices = "/apis/resource.k8s.io/v1/resourceslices"
	claimTemplates = "/apis/resource.k8s.io/v1/namespaces/" + namespace + "/resourceclaimtemplates"
)

func (l load) memoryTemplate() string { return "memory-" + strings.ToLower(l.memory) }

// claimTemplate is for a claim that has what a pod of the load has.
func (l load) claimTemplate() []byte {
	return fmt.Appendf(nil, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s}
spec: {spec: {devices: {requests: [{name: memory, exactly: {deviceClassName: numa-memory, capacity: {requests: {memory: %s}}}}]}}}
`, l.memoryTemplate(), l.memory)
}

// published counts the nodes whose NUMA nodes are devices.
func (f *fleet) published(ctx context.Context) (int, error) {
	list, err := f.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return len(slices.DeleteFunc(list.Items, func(s resourceapi.ResourceSlice) bool {
		return s.Spec.Driver != driver || len(s.Spec.Devices) != numaNodes
	})), nil
}

// register finds the plugin's socket in the kubelet's folder of plugins, asks what it is, and takes it as a driver.
func (n *node) register(ctx context.Context) error {
	var sockets []string
	err := await(ctx, "the driver's socket", func() (found bool, err error) {
		sockets, err = filepath.Glob(n.path("registry/*.sock"))
		return len(sockets) == 1, err
	})
	if err != nil {
		return err
	}
	if n.driver, err = grpc.NewClient("unix:"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	client := registration.NewRegistrationClient(n.driver)
	info, err := client.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if info.Type != registration.DRAPlugin || info.Name != driver || !slices.Contains(info.SupportedVersions, drav1.DRAPluginService) {
		return fmt.Errorf("it is %v, want %s of driver %s", info, drav1.DRAPluginService, driver)
	}
	_, err = client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true})
	return err
}

// prepare has the driver prepare the claims that a pod has by templates, and returns their CDI devices. Drivers that are only
// ResourceSlices here have nothing to prepare.
func (n *node) prepare(ctx context.Context, pod *corev1.Pod) (devices []string, err error) {
	for _, status := range pod.Status.ResourceClaimStatuses {
		claim, err := n.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *status.ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(claim.Status.ReservedFor, func(c resourceapi.ResourceClaimConsumerReference) bool { return c.UID == pod.UID }) {
			return nil, fmt.Errorf("claim %s is not reserved for the pod", claim.Name)
		}
		named := &drav1.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
		n.claims[pod.UID] = append(n.claims[pod.UID], named)
		response, err := drav1.NewDRAPluginClient(n.driver).NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{named}})
		if err != nil {
			return nil, err
		}
		answer := response.GetClaims()[named.Uid]
		if answer.GetError() != "" || len(answer.GetDevices()) == 0 {
			return nil, fmt.Errorf("claim %s is prepared as %v", claim.Name, answer)
		}
		for _, device := range answer.GetDevices() {
			devices = append(devices, device.GetCdiDeviceIds()...)
		}
	}
	return devices, nil
}

// unprepare releases a pod's claims.
func (n *node) unprepare(ctx context.Context, pod *corev1.Pod) error {
	claims := n.claims[pod.UID]
	if len(claims) == 0 {
		return nil
	}
	response, err := drav1.NewDRAPluginClient(n.driver).NodeUnprepareResources(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return err
	}
	for _, claim := range claims {
		if answer := response.GetClaims()[claim.Uid]; answer == nil || answer.GetError() != "" {
			err = errors.Join(err, fmt.Errorf("claim %s is released as %v", claim.Name, answer))
		}
	}
	delete(n.claims, pod.UID)
	return err
}

// environment is what the CDI specifications have these devices add to a container, as the runtime reads them.
func (n *node) environment(devices []string) (all []string, err error) {
	files, err := filepath.Glob(n.path("cdi/*.json"))
	if err != nil {
		return nil, err
	}
	found := 0
	for _, file := range files {
		var specification struct {
			Kind    string
			Devices []struct {
				Name           string
				ContainerEdits struct{ Env []string }
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &specification); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, device := range specification.Devices {
			if slices.Contains(devices, specification.Kind+"="+device.Name) {
				found++
				all = append(all, device.ContainerEdits.Env...)
			}
		}
	}
	if found != len(devices) {
		return nil, fmt.Errorf("%d of the CDI devices %q have a specification", found, devices)
	}
	return all, nil
}
