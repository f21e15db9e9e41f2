package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

func newRollbackCommand() *cobra.Command {
	var (
		o      hostOptions
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Take back everything that the plugin has written on this node",
		Long: `Rollback restores every cgroup file and systemd property that the plugin has written on this node and that is still
there, from the journal in its state folder: memory.high to max, memory.min and memory.low to 0, cpuset.mems to what the
parent has. It is safe while pods run and can be repeated. Stop the plugin first, or it writes again.`,
		Example: `  nri-memory-manager rollback --dry-run
  nri-memory-manager rollback`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return rollback(cmd.Context(), o, dryRun, cmd.OutOrStdout())
		},
	}
	o.addTo(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be done")
	return cmd
}

func rollback(ctx context.Context, o hostOptions, dryRun bool, out io.Writer) error {
	tree, err := o.openTree()
	if err != nil {
		return err
	}
	defer tree.Close()
	if _, err := os.Stat(filepath.Join(o.stateDir, cgroup.JournalFile)); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(out, "nothing to restore: %s has no journal of written files\n", o.stateDir)
		return nil
	}
	journal, damage, err := cgroup.OpenJournal(o.stateDir)
	if err != nil {
		return failed(err)
	}
	actions, err := cgroup.Rollback(ctx, journal, tree, o.patientUnits(), dryRun)
	for _, action := range actions {
		fmt.Fprintln(out, describe(action, dryRun))
	}
	if len(actions) == 0 {
		fmt.Fprintln(out, "nothing to restore")
	}
	if e := journal.Close(ctx); e != nil && !dryRun {
		err = errors.Join(err, fmt.Errorf("writing the journal: %w", e))
	}
	if err != nil {
		return failed(errors.New("not everything could be restored; what is left stays in the journal"))
	}
	if damage != nil {
		return failed(fmt.Errorf("the journal of written files cannot be read in full, and what is not known of it is not restored: %w", damage))
	}
	return nil
}

// rollbackTimeout bounds the rollback of a daemon that ends, within the 30 s that Kubernetes gives it.
const rollbackTimeout = 20 * time.Second

// rollback takes everything back when the daemon ends (onTermination: Rollback).
func (d *daemon) rollback() error {
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	lines := d.log.WriterLevel(logrus.InfoLevel)
	defer lines.Close()
	err := rollback(ctx, d.options.hostOptions, false, lines)
	if d.topology != nil {
		err = errors.Join(err, d.topology.Delete())
	}
	return err
}

// describe is one line about one file.
func describe(a cgroup.Action, dryRun bool) string {
	file := a.Cgroup + "/" + string(a.Knob)
	if a.Unit != "" {
		file += " (unit " + a.Unit + ")"
	}
	switch {
	case a.Err != nil:
		return fmt.Sprintf("FAILED   %s: %v", file, a.Err)
	case a.Gone:
		return fmt.Sprintf("gone     %s", file)
	case dryRun:
		return fmt.Sprintf("would    %s: %q to %q", file, a.From, a.To)
	}
	return fmt.Sprintf("restored %s: %q to %q", file, a.From, a.To)
}
