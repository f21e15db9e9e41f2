package cri

import (
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
)

// SpeakAs makes a runtime's requests look like those of a version of NRI, and lets it refuse what that one did not know.
// The differences are those that plugins have met: what is said on the wire, not how the old runtime worked inside.
func SpeakAs(nri nriplugin.Version) ttrpc.ClientOpts {
	return ttrpc.WithUnaryClientInterceptor(wire{nri}.call)
}

type wire struct{ nri nriplugin.Version }

// known returns the events of this version.
func (w wire) known() api.EventMask {
	last := api.Event_REMOVE_CONTAINER
	if w.nri.AtLeast(0, 10, 0) {
		last = api.Event_VALIDATE_CONTAINER_ADJUSTMENT
	}
	return api.EventMask(1)<<last - 1
}

func (w wire) call(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, _ *ttrpc.UnaryClientInfo, next ttrpc.Invoker) error {
	err := error(nil)
	switch request.Method {
	case "Configure":
		return w.configure(ctx, request, response, next)
	case "Synchronize":
		err = rewrite(w, request, func(r *api.SynchronizeRequest) []*api.Container { return r.Containers })
	case "CreateContainer":
		err = rewrite(w, request, func(r *api.CreateContainerRequest) []*api.Container { return []*api.Container{r.Container} })
	case "UpdateContainer":
		err = rewrite(w, request, func(r *api.UpdateContainerRequest) []*api.Container { return []*api.Container{r.Container} })
	case "StopContainer":
		err = rewrite(w, request, func(r *api.StopContainerRequest) []*api.Container { return []*api.Container{r.Container} })
	default:
		err = w.stateChange(request)
	}
	if err != nil {
		return err
	}
	return next(ctx, request, response)
}

// configure leaves the NRI version out before 0.12 and the failure policy before 0.12.4.
func (w wire) configure(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, next ttrpc.Invoker) error {
	configured := &api.ConfigureRequest{}
	if err := proto.Unmarshal(request.Payload, configured); err != nil {
		return err
	}
	configured.NRIVersion = ""
	if w.nri.AtLeast(0, 12, 0) {
		configured.NRIVersion = "v" + w.nri.String()
	}
	var err error
	if request.Payload, err = proto.Marshal(configured); err != nil {
		return err
	}
	if err := next(ctx, request, response); err != nil || response.GetStatus().GetCode() != 0 {
		return err
	}
	reply := &api.ConfigureResponse{}
	if err := proto.Unmarshal(response.Payload, reply); err != nil {
		return err
	}
	if extra := api.EventMask(reply.Events) &^ w.known(); extra != 0 {
		return fmt.Errorf("invalid plugin events: 0x%x", extra)
	}
	if !w.nri.AtLeast(0, 12, 4) {
		reply.FailurePolicy = nil
	}
	response.Payload, err = proto.Marshal(reply)
	return err
}

// strip leaves the unified map out before 0.10.
func (w wire) strip(container *api.Container) {
	if !w.nri.AtLeast(0, 10, 0) && container.GetLinux().GetResources() != nil {
		container.Linux.Resources.Unified = nil
	}
}

// Before 0.12 these events had no call of their own.
var stateChanges = map[string]api.Event{
	"RunPodSandbox":        api.Event_RUN_POD_SANDBOX,
	"PostUpdatePodSandbox": api.Event_POST_UPDATE_POD_SANDBOX,
	"StopPodSandbox":       api.Event_STOP_POD_SANDBOX,
	"RemovePodSandbox":     api.Event_REMOVE_POD_SANDBOX,
	"PostCreateContainer":  api.Event_POST_CREATE_CONTAINER,
	"StartContainer":       api.Event_START_CONTAINER,
	"PostStartContainer":   api.Event_POST_START_CONTAINER,
	"PostUpdateContainer":  api.Event_POST_UPDATE_CONTAINER,
	"RemoveContainer":      api.Event_REMOVE_CONTAINER,
}

func (w wire) stateChange(request *ttrpc.Request) error {
	event, old := stateChanges[request.Method]
	if !old || w.nri.AtLeast(0, 12, 0) {
		return nil
	}
	// All these requests have the pod as their first field and the container as their second.
	from := &api.PostCreateContainerRequest{}
	if err := proto.Unmarshal(request.Payload, from); err != nil {
		return err
	}
	if from.Container != nil {
		w.strip(from.Container)
	}
	payload, err := proto.Marshal(&api.StateChangeEvent{Event: event, Pod: from.Pod, Container: from.Container})
	request.Method, request.Payload = "StateChange", payload
	return err
}

// rewrite strips the containers of a request.
func rewrite[M any, T interface {
	*M
	proto.Message
}](w wire, request *ttrpc.Request, containers func(T) []*api.Container) error {
	if w.nri.AtLeast(0, 10, 0) {
		return nil
	}
	message := T(new(M))
	if err := proto.Unmarshal(request.Payload, message); err != nil {
		return err
	}
	for _, container := range containers(message) {
		w.strip(container)
	}
	payload, err := proto.Marshal(message)
	request.Payload = payload
	return err
}
