// Package kubectl is the kubectl plugin: it finds the daemon of a pod's node, runs the daemon's own command in its container
// with the rights of the user, and prints what that prints.
//
// It links nothing of the daemon, which is for Linux alone: this runs wherever kubectl does.
package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

// Execute runs one command line and returns the exit code.
func Execute(ctx context.Context, version string, args []string, out, errOut io.Writer) int {
	root := NewCommand(version)
	root.SetOut(out)
	root.SetErr(errOut)
	return commandline.ExitCode(commandline.Execute(ctx, root, args), func(err error) {
		fmt.Fprintln(errOut, "kubectl memory-manager: "+printable(err.Error()))
	})
}

// options are the flags of all commands.
type options struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	daemons    place
	timeout    time.Duration
}

// place is where the daemons' pods are looked for.
type place struct{ namespace, selector string }

// Defaults of flags.
const (
	defaultSelector = "app.kubernetes.io/name=nri-memory-manager" // the chart's and the kustomization's
	defaultTimeout  = 20 * time.Second
)

// NewCommand returns the plugin's command with its subcommands.
func NewCommand(version string) *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:         "kubectl-memory_manager",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl memory-manager"},
		Short:       "Ask the nri-memory-manager of a pod's node where the pod's memory is, and whether it is protected",
		Long: `kubectl memory-manager finds the nri-memory-manager daemon on a pod's node, or on every node, and runs its commands status,
explain, verify and oom there, as kubectl exec does, with your own rights.

Exit status: 0 done, 1 something was found or failed, 2 bad input.`,
		Example: `  kubectl memory-manager status
  kubectl memory-manager explain database -n shop
  kubectl memory-manager verify database -n shop`,
		Args:          commandline.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file in place of $KUBECONFIG and ~/.kube/config")
	clientcmd.BindOverrideFlags(&o.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	flags.StringVar(&o.daemons.namespace, "daemon-namespace", "", "namespace of the daemons' DaemonSet; empty looks in all of them, which takes the right to list DaemonSets in all")
	flags.StringVar(&o.daemons.selector, "daemon-selector", defaultSelector, "labels of the daemons' pods")
	flags.DurationVar(&o.timeout, "node-timeout", defaultTimeout, "how long the daemon of a node may take to answer")
	root.AddCommand(newStatusCommand(&o), newExplainCommand(&o), newOOMCommand(&o), newVerifyCommand(&o), &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this kubectl plugin",
		Long:    `Prints the version of this kubectl plugin. "kubectl memory-manager status" shows those of the daemons.`,
		Example: "  kubectl memory-manager version",
		Args:    commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s\n", root.DisplayName(), version)
			return err
		},
	})
	return root
}

// connect returns the cluster of the kubeconfig, the namespace that is asked about, and the pod that the only argument names; "" without one.
func (o *options) connect(args []string) (_ *cluster, namespace, pod string, err error) {
	if pod, err = commandline.Pod(args, o.overrides.Context.Namespace); err != nil {
		return nil, "", "", err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &o.overrides)
	if namespace, _, err = loader.Namespace(); err != nil {
		return nil, "", "", kubeconfigError(err)
	}
	if in, name, qualified := strings.Cut(pod, "/"); qualified {
		namespace, pod = in, name
	}
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", "", kubeconfigError(err)
	}
	if o.timeout <= 0 {
		return nil, "", "", fmt.Errorf("--node-timeout %s: want more than 0", o.timeout)
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	klog.SetLogger(klog.Logger{}) // logs nothing: what goes wrong is an error or a line of the table
	client, err := coreclient.NewForConfig(config)
	if err != nil {
		return nil, "", "", err
	}
	sets, err := appsclient.NewForConfig(config)
	if err != nil {
		return nil, "", "", err
	}
	return &cluster{client: client, sets: sets, daemons: o.daemons, timeout: o.timeout, run: executor{client.RESTClient(), config}.run}, namespace, pod, nil
}

func kubeconfigError(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no kubeconfig: want one in --kubeconfig, $KUBECONFIG or ~/.kube/config")
	}
	return fmt.Errorf("kubeconfig: %w", err)
}
