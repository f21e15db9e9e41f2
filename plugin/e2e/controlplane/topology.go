package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// topologies is where the API server serves NodeResourceTopologies.
const topologies = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"

// Apply creates an object from YAML at a path of the API.
func (c *Cluster) Apply(ctx context.Context, path string, object []byte) error {
	err := c.Client.Discovery().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/yaml").Body(object).Do(ctx).Error()
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
	name := metav1.ObjectMeta{Name: TopologyAware}
	role := &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"topology.node.k8s.io"}, Resources: []string{"noderesourcetopologies"}, Verbs: []string{"get", "list", "watch"}}}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: TopologyAware},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:kube-scheduler"}}}
	if _, err := c.Client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("let the scheduler read NodeResourceTopologies: %w", err)
	}
	if _, err := c.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("let the scheduler read NodeResourceTopologies: %w", err)
	}
	return c.wait(ctx, "NodeResourceTopologies to be served", func(ctx context.Context) error {
		_, err := c.Topologies(ctx)
		return err
	})
}

// Topologies counts the NodeResourceTopologies.
func (c *Cluster) Topologies(ctx context.Context) (int, error) {
	var list metav1.PartialObjectMetadataList
	text, err := c.Client.Discovery().RESTClient().Get().AbsPath(topologies).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	err = json.Unmarshal(text, &list)
	return len(list.Items), err
}

// StartTopologyAware starts the second scheduler, which runs beside the first one for the pods that name it. arguments are
// those of its plugin, in YAML; flags are added to the scheduler's. A scheduler with a cache knows the objects only that were
// there when it started.
func (c *Cluster) StartTopologyAware(ctx context.Context, arguments string, flags ...string) error {
	err := c.startScheduler(TopologyAware, topologyAware, "profiles:\n- schedulerName: "+TopologyAware+
		"\n  plugins: {multiPoint: {enabled: [{name: NodeResourceTopologyMatch}]}}"+
		"\n  pluginConfig: [{name: NodeResourceTopologyMatch, args: "+arguments+"}]\n", flags...)
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
