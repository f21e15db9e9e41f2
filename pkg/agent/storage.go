package agent

import (
	"errors"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// storedFile is a file of the state folder.
type storedFile struct {
	name, title string
	consequence string // of a failure to write it
	stats       durable.Stats
	unusable    string // why it has not been written since the start; logged then
}

// storedFiles returns the files of the state folder, the most important first. A dry run needs none.
func (a *Agent) storedFiles(static, dryRun bool) (files []storedFile) {
	if dryRun {
		return nil
	}
	if static {
		state := storedFile{
			name: checkpoint.FileName, title: "the state file", consequence: "containers start, but allocations are kept in memory only",
			unusable: a.unusable[checkpoint.FileName],
		}
		if a.writer != nil {
			state.stats = a.writer.Stats()
		}
		files = append(files, state)
	}
	journal := storedFile{
		name: protect.JournalFile, title: "the journal of written cgroup files (" + protect.JournalFile + ")", consequence: "rollback may leave values behind",
		unusable: a.unusable[protect.JournalFile],
	}
	if a.journal != nil {
		journal.stats = a.journal.Stats()
	}
	return append(files, journal,
		storedFile{
			name: raisesFile, title: "the file of raised memory.high values (" + raisesFile + ")",
			consequence: "after a restart containers get their computed ones", stats: a.raises.Stats(),
		},
		storedFile{
			name: requestsFile, title: "the file of known pods (" + requestsFile + ")",
			consequence: "after a restart their requests are estimates until a source answers", stats: a.requests.File(),
		})
}

// hanging reports whether a write of a file takes longer than slowDisk.
func (a *Agent) hanging(stats durable.Stats) bool {
	return stats.Pending && a.now().Sub(stats.PendingSince) > slowDisk
}

// failure returns why a file is not written; "" if it is.
func (a *Agent) failure(file storedFile) string {
	switch {
	case file.unusable != "":
		return file.unusable
	case file.stats.LastError != "":
		return file.stats.LastError
	case a.hanging(file.stats):
		return file.title + " has not been written for more than " + slowDisk.String()
	}
	return ""
}

// logStorage logs once that a file cannot be written, and once that it can be written again.
func (a *Agent) logStorage() {
	a.mu.Lock()
	config := a.ledger.Config()
	failing := map[string]string{}
	var begun, ended []storedFile
	for _, file := range a.storedFiles(config.Static, config.Config.DryRun()) {
		if file.unusable != "" {
			continue
		}
		text, failed := a.failure(file), a.failingFiles[file.name] != ""
		switch {
		case text != "" && !failed:
			begun = append(begun, file)
		case text == "" && failed:
			ended = append(ended, file)
		}
		if text != "" {
			failing[file.name] = text
		}
	}
	a.failingFiles = failing
	a.mu.Unlock()
	for _, file := range begun {
		a.log.WithFields(logrus.Fields{"file": file.name, "error": failing[file.name]}).Error(file.title + " cannot be written: " + file.consequence)
	}
	for _, file := range ended {
		a.log.WithField("file", file.name).Info(file.title + " can be written again")
	}
}

// storageCondition returns the condition of the files in the state folder.
func (a *Agent) storageCondition(view *ledger.View) ledger.Condition {
	condition := ledger.Condition{Name: ledger.ConditionCheckpoint, OK: true}
	var all []string
	for _, file := range a.storedFiles(view.Config.Static, view.Config.Config.DryRun()) {
		text := a.failure(file)
		if text == "" {
			continue
		}
		all = append(all, text)
		if condition.OK || file.stats.PendingSince.Before(condition.Since) {
			condition.Since = file.stats.PendingSince
		}
		condition.OK = false
	}
	condition.Message = strings.Join(all, "; ")
	return condition
}

// State returns the allocations in the format of the state file. The error says why there are none. In a dry run the state file keeps earlier
// allocations.
func (a *Agent) State() ([]byte, error) {
	a.mu.Lock()
	state, static := a.ledger.Allocations()
	dryRun := a.ledger.Config().Config.DryRun()
	a.mu.Unlock()
	switch {
	case !static:
		return nil, errors.New("nothing is allocated: memoryManagerPolicy is None")
	case dryRun:
		return nil, errors.New("nothing is allocated: this is a dry run")
	}
	return checkpoint.Encode(checkpoint.PolicyStatic, state), nil
}
