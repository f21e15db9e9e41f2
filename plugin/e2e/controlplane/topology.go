package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// topologies is where the API server serves NodeResourceTopologies.
const topologies = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"

// Apply creates an object from YAML at a path of the API.
func (c *Cluster) Apply(ctx context.Context, path string, object []byte) error {
	err := c.client.Post().AbsPath(path).SetHeader("Content-Type", "application/yaml").Body(object).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("create an object at %s: %w", path, err)
	}
	return nil
}

// ServeTopologies installs the definition of NodeResourceTopologies and lets the schedulers read them.
func (c *Cluster) ServeTopologies(ctx context.Context, definition []byte) error {
	if err := c.Apply(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition); err != nil {
		return err
	}
	const named = "{apiVersion: rbac.authorization.k8s.io/v1, metadata: {name: " + TopologyAware + "}, "
	for path, object := range map[string]string{
		"/apis/rbac.authorization.k8s.io/v1/clusterroles": named + "kind: ClusterRole, rules: [" +
			"{apiGroups: [topology.node.k8s.io], resources: [noderesourcetopologies], verbs: [get, list, watch]}]}",
		"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings": named + "kind: ClusterRoleBinding, " +
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: " + TopologyAware + "}, " +
			"subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: 'system:kube-scheduler'}]}",
	} {
		if err := c.Apply(ctx, path, []byte(object)); err != nil {
			return fmt.Errorf("let the scheduler read NodeResourceTopologies: %w", err)
		}
	}
	return c.wait(ctx, "NodeResourceTopologies to be served", func(ctx context.Context) error {
		_, err := c.Topologies(ctx)
		return err
	})
}

// Topologies counts the NodeResourceTopologies.
func (c *Cluster) Topologies(ctx context.Context) (int, error) {
	var list metav1.PartialObjectMetadataList
	text, err := c.client.Get().AbsPath(topologies).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	err = json.Unmarshal(text, &list)
	return len(list.Items), err
}

// StartTopologyAware starts the second scheduler, which runs beside the first one for the pods that name it. arguments are
// those of its plugin and extenders its extenders, in YAML; flags are added to the scheduler's. A scheduler with a cache knows
// the objects only that were there when it started.
func (c *Cluster) StartTopologyAware(ctx context.Context, arguments, extenders string, flags ...string) error {
	err := c.startScheduler(TopologyAware, topologyAware, "profiles:\n- schedulerName: "+TopologyAware+
		"\n  plugins: {multiPoint: {enabled: [{name: NodeResourceTopologyMatch}]}}"+
		"\n  pluginConfig: [{name: NodeResourceTopologyMatch, args: "+arguments+"}]\nextenders: "+extenders+"\n", flags...)
	if err != nil {
		return err
	}
	return c.wait(ctx, TopologyAware, func(ctx context.Context) error { // it listens when its plugins are made
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(loopback, c.port(topologyAware)))
		if err == nil {
			connection.Close()
		}
		return err
	})
}
