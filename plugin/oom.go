package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

func (d *daemon) watchKills() *oom.Recorder {
	o := oom.Options{
		Tree: d.tree, View: d.agent.View, Changed: d.agent.Changed(), Path: filepath.Join(d.options.stateDir, oom.FileName), Proc: d.options.outside.proc,
		Log: d.log, OnVerdict: d.events.Killed,
	}
	if d.guard != nil {
		o.OnHigh = d.guard.Notice
	}
	if d.options.sysfs != "" {
		o.Sys = d.options.sysfs
		o.MemInfo = func() ([]deficit.MemInfo, error) {
			return sysfs.MemInfo(d.options.sysfs, d.agent.View().Config.Machine)
		}
	}
	return oom.New(o)
}

func newOOMCommand() *cobra.Command {
	var stateDir, namespace, format string
	cmd := &cobra.Command{
		Use:   "oom [[NAMESPACE/]POD]",
		Short: "Say why the kernel killed processes of containers, and what to change",
		Long: `OOM shows the last OOM kills in containers of this node, the newest first: which limit was hit, or that the node or NUMA nodes
had no memory left, what the memory was used for, who used most of it beyond its share, and what helps. It reads the file of verdicts in
the state folder, and needs no daemon; one that runs is asked whether a pod without kills is there.

A pod is named by namespace and name, by its name alone, or by its UID.

Exit status: 0 done, also without kills, 1 the file cannot be read or no such pod, 2 bad input.`,
		Example: `  nri-memory-manager oom
  nri-memory-manager oom shop/web
  nri-memory-manager oom -o json | jq '.[] | select(.level == "node")'`,
		Args:              commandline.Args(0, 1),
		ValidArgsFunction: completePod(&stateDir, podWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			pod, err := commandline.Pod(args, namespace)
			if err != nil {
				return err
			}
			verdicts, err := oom.Read(stateDir)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return commandline.Failed(fmt.Errorf("no daemon has kept verdicts in %s; is it this --state-dir? %w", stateDir, err))
			case err != nil:
				return commandline.Failed(err)
			}
			verdicts = slices.DeleteFunc(verdicts, func(v oom.Verdict) bool {
				return pod != "" && !v.Is(pod) || namespace != "" && v.Namespace != namespace
			})
			if pod != "" && len(verdicts) == 0 {
				if err := isThere(cmd, stateDir, pod); err != nil {
					return commandline.Failed(err)
				}
			}
			return commandline.Failed(commandline.Write(cmd.OutOrStdout(), format, verdicts, func(to io.Writer) error { return oom.Write(to, verdicts) }))
		},
	}
	addDaemon(cmd, &stateDir, &namespace, "the pod's namespace, or the only one to show")
	commandline.AddOutput(cmd, &format, "text", "json", "yaml")
	return cmd
}

// isThere is an error where a running daemon does not know the pod. One that does not answer at once is not waited for.
func isThere(cmd *cobra.Command, stateDir, pod string) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	var now status.Document
	if err := ask(ctx, stateDir, "/status", nil, &now); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "whether pod %q is on this node is not known: %v\n", pod, err)
		return nil
	}
	_, err := now.Select(status.Selection{Pod: pod})
	return err
}
