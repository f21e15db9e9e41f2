package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

func newRollbackCommand() *cobra.Command {
	var (
		o              hostOptions
		dryRun, resume bool
	)
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Take back everything that the plugin has written on this node",
		Long: `Rollback restores every cgroup file and systemd property that the plugin has written on this node and that is still
there, from the journal in its state folder: memory.high to max, memory.min and memory.low to 0, cpuset.mems to what the
parent has. It is safe while pods run and can be repeated.

A daemon that runs with the state folder is told to do it, over its socket there. It writes nothing more afterwards, new containers
get nothing from it, and it is not ready, until --resume or its next start.

A kubelet with the feature gate MemoryQoS writes memory.min, memory.low and memory.high itself. Its value of a container is
given back where a request to the runtime has carried it, or where it was found beside ours; its value of a pod, where it stood
in the file before ours. kubepods and the Burstable level are set to 0: their sums move with every pod, and the kubelet
writes memory.min of kubepods and memory.low of the Burstable level again within a minute. What was not known goes to the
kernel's default, and the last lines say so.`,
		Example: `  nri-memory-manager rollback --dry-run
  nri-memory-manager rollback
  nri-memory-manager rollback --resume`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case resume && dryRun:
				return errors.New("--resume and --dry-run: give one of them")
			case resume:
				return resumeLive(cmd.Context(), o.stateDir, cmd.OutOrStdout())
			case !dryRun:
				if err := rollbackLive(cmd.Context(), o.stateDir, cmd.OutOrStdout()); !errors.Is(err, errNoDaemon) {
					return commandline.Failed(err)
				}
			}
			return rollback(cmd.Context(), o, dryRun, cmd.OutOrStdout())
		},
	}
	o.addTo(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be done")
	cmd.Flags().BoolVar(&resume, "resume", false, "have the running daemon write its values again after a rollback")
	return cmd
}

// restored is what a daemon answers to a rollback.
type restored struct {
	Lines []string // for people
	Left  bool     // not everything could be restored
}

// rollBack restores everything that this daemon has written; it runs on, and writes nothing more.
func (d *daemon) rollBack(ctx context.Context) (any, error) {
	actions, err := d.agent.Rollback(ctx)
	left := slices.ContainsFunc(actions, func(a protect.Action) bool { return a.Err != nil })
	return restored{linesOf(actions, false), left}, err
}

func (d *daemon) resume(ctx context.Context) (any, error) { return restored{}, d.agent.Resume(ctx) }

// rollbackLive has the running daemon restore everything. The error is errNoDaemon where there is none.
func rollbackLive(ctx context.Context, stateDir string, out io.Writer) error {
	var done restored
	if err := order(ctx, stateDir, "/rollback", &done); err != nil {
		return err
	}
	for _, line := range done.Lines {
		fmt.Fprintln(out, line)
	}
	if done.Left {
		return errors.New("not everything could be restored: the daemon tries again every 10 seconds")
	}
	fmt.Fprintln(out, `the daemon writes nothing more until "nri-memory-manager rollback --resume", or its next start`)
	return nil
}

func resumeLive(ctx context.Context, stateDir string, out io.Writer) error {
	if err := order(ctx, stateDir, "/resume", &restored{}); err != nil {
		return commandline.Failed(err)
	}
	fmt.Fprintln(out, "the rollback is ended: the daemon writes what its profile has it write")
	return nil
}

func rollback(ctx context.Context, o hostOptions, dryRun bool, out io.Writer) error {
	tree, err := o.openTree()
	if err != nil {
		return err
	}
	defer tree.Close()
	if _, err := os.Stat(o.stateDir); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if _, err := os.Stat(filepath.Join(o.stateDir, protect.JournalFile)); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(out, "nothing to restore: %s has no journal of written files\n", o.stateDir)
		return nil
	}
	open := protect.ReadJournal
	if !dryRun {
		open = protect.OpenJournal
		store, err := checkpoint.Open(o.stateDir)
		if err != nil {
			return commandline.Failed(err)
		}
		defer store.Close()
		if err := store.Lock(); errors.Is(err, checkpoint.ErrInUse) { // other errors: a file system without locks
			return commandline.Failed(fmt.Errorf("nothing was restored: %w: stop it first", err))
		}
	}
	journal, damage, err := open(o.stateDir)
	if err != nil {
		return commandline.Failed(err)
	}
	restoring, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	actions, err := protect.Rollback(restoring, journal, tree, o.units(), dryRun)
	for _, line := range linesOf(actions, dryRun) {
		fmt.Fprintln(out, line)
	}
	if err != nil {
		err = errors.New("not everything could be restored; what is left stays in the journal")
	}
	if !dryRun {
		err = errors.Join(err, closeJournal(ctx, journal, o.stateDir))
	}
	if err != nil {
		return commandline.Failed(err)
	}
	if damage != nil {
		return commandline.Failed(fmt.Errorf("the journal of written files cannot be read in full, and what is not known of it is not restored: %w", damage))
	}
	return nil
}

// closeJournal writes what was restored to the journal in a folder.
func closeJournal(ctx context.Context, journal *protect.Journal, dir string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTimeout)
	defer cancel()
	if err := journal.Close(ctx); err != nil {
		path := filepath.Join(dir, protect.JournalFile)
		return fmt.Errorf("the lines above say what was restored, but the journal %s still has all of it: %w", path, err)
	}
	return nil
}

const (
	// restoreTimeout is how long files and systemd may take, and journalTimeout the journal: a daemon that ends has 30 s from Kubernetes.
	restoreTimeout = 15 * time.Second
	journalTimeout = 5 * time.Second
)

// rollback takes everything back when the daemon ends (onTermination: Rollback), unless another one goes on with its state folder.
func (d *daemon) rollback() error {
	lines := d.log.WriterLevel(logrus.InfoLevel)
	defer lines.Close()
	err := rollback(context.Background(), d.options.hostOptions, false, lines)
	if errors.Is(err, checkpoint.ErrInUse) {
		d.log.WithError(err).Info("the written values are kept for the daemon that has the state folder now")
		return nil
	}
	if d.topology != nil {
		err = errors.Join(err, d.topology.Delete())
	}
	return err
}

// linesOf is a line about each file, and what a kubelet does about them.
func linesOf(actions []protect.Action, dryRun bool) (lines []string) {
	for _, action := range actions {
		lines = append(lines, describe(action, dryRun))
	}
	for _, line := range notes(actions) {
		lines = append(lines, "note     "+line)
	}
	if len(actions) == 0 {
		lines = append(lines, "nothing to restore")
	}
	return lines
}

func describe(a protect.Action, dryRun bool) string {
	file := a.Cgroup + "/" + string(a.Knob)
	if a.Unit != "" {
		file += " (unit " + a.Unit + ")"
	}
	done, whose := "restored", ""
	if dryRun {
		done = "would   "
	}
	if a.KubeletValue {
		whose = ", the kubelet's own value"
	}
	switch {
	case a.Err != nil:
		return fmt.Sprintf("FAILED   %s: %v", file, a.Err)
	case a.Gone:
		return fmt.Sprintf("gone     %s", file)
	}
	return fmt.Sprintf("%s %s: %q to %q%s", done, file, a.From, a.To, whose)
}

// notes say which values others write again: the runtime, which writes all of its record of a container with each update, and a kubelet that
// writes some itself. They follow its qosContainerManagerImpl.UpdateCgroups (at its start, every minute, and when a pod starts or is killed),
// podContainerManagerImpl.EnsureExists and generateLinuxContainerResources.
func notes(actions []protect.Action) []string {
	above, unknown, containers := false, 0, map[string]bool{}
	for _, a := range actions {
		if a.Gone || a.Err != nil {
			continue
		}
		if a.Level == cgroup.LevelContainer {
			containers[a.Cgroup] = true
		}
		switch {
		case a.Knob == cgroup.CpusetMems, a.Knob == cgroup.MemoryOOMGroup: // which is what it was before
		case a.Level == cgroup.LevelKubepods, a.Level == cgroup.LevelSystem, a.Level == cgroup.LevelBurstable:
			above = true
		case !a.KubeletValue:
			unknown++
		}
	}
	var lines []string
	if above {
		lines = append(lines, "a kubelet with the feature gate MemoryQoS writes memory.min of kubepods and memory.low of the Burstable level again "+
			"within a minute, at its own start, and when a pod starts or ends; memory.low of kubepods it writes from 1.37 on, memory.min of the Burstable level never")
	}
	if unknown > 0 {
		lines = append(lines, fmt.Sprintf("no value of the kubelet's is known for %d of the files of pods and containers: these go to the kernel's default. "+
			"A kubelet with the feature gate MemoryQoS writes a container's again when it is created or resized, and a pod's only for a new pod", unknown))
	}
	if len(containers) > 0 {
		lines = append(lines, fmt.Sprintf("the runtime may still have the values of before in its records of containers (%d), and writes them again when it updates one: "+
			"without the plugin, restart their pods", len(containers)))
	}
	return lines
}
