package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// settle is how long a configuration file must have been left alone before it is read: an editor writes in several steps.
const settle = 100 * time.Millisecond

// watchConfig puts a changed configuration file in force, and the unchanged one again on SIGHUP (a KubeletConfiguration
// that it takes over may have changed). One that is not valid leaves the old one in force.
func (d *daemon) watchConfig(ctx context.Context) error {
	path := d.options.configPath
	if d.waited { // a file that it takes over was read before the wait for the state folder, which may be long ago
		d.reload(ctx, path)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.options.outside.prompts:
			d.reload(ctx, path)
		}
	}
}

// textFile is a file whose text was read before.
type textFile struct {
	path string
	text []byte
}

// changed reads the file again. One that cannot be read has changed.
func (f *textFile) changed() bool {
	before := f.text
	text, err := os.ReadFile(f.path)
	f.text = text
	return err != nil || !bytes.Equal(text, before)
}

// prompts says when a configuration file is to be read again, until ctx ends: on SIGHUP, and when it has changed. It is called before the
// file is first read: a SIGHUP would end the process, and a change would not be seen.
func (o *runOptions) prompts(ctx context.Context, path string) <-chan struct{} {
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)

	// The folder is watched, not the file: editors and the kubelet put a new file in the old one's place. For a mounted
	// ConfigMap that is the swap of the symlink ..data beside it.
	var (
		changes chan fsnotify.Event
		missed  chan error
	)
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		context.AfterFunc(ctx, func() { watcher.Close() })
		err = watchFolders(watcher, path)
		changes, missed = watcher.Events, watcher.Errors
	}
	if err != nil {
		o.log.WithError(err).Warn("changes of the configuration file are taken on SIGHUP only")
	}
	file := textFile{path: path}
	file.changed()
	prompts := make(chan struct{})
	go func() {
		var settled <-chan time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case <-changes:
				settled = time.After(settle)
				continue
			case <-missed: // events were lost, perhaps ours
				settled = time.After(settle)
				continue
			case <-hangUp:
				file.changed()
			case <-settled:
				if settled = nil; !file.changed() {
					continue
				}
			}
			select {
			case prompts <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	return prompts
}

// watchFolders watches the folder of a file, and that of the file it links to.
func watchFolders(watcher *fsnotify.Watcher, path string) error {
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(target) != filepath.Dir(path) {
		return watcher.Add(filepath.Dir(target))
	}
	return nil
}

func (d *daemon) reload(ctx context.Context, path string) {
	c, err := loadConfig(path)
	if err != nil {
		d.agent.RejectConfig(err)
		return
	}
	d.take(ctx, c)
}

// configure takes the configuration that a runtime delivers to a plugin that it launched.
func (d *daemon) configure(ctx context.Context, text string) error {
	c, err := files.Parse("configuration from the runtime", []byte(text))
	if err != nil {
		return err
	}
	return d.take(ctx, c)
}

// take puts a configuration in force; the agent logs and counts one that does not fit this machine.
func (d *daemon) take(ctx context.Context, c config.Config) error {
	keys := d.options.config.StartKeys(c)
	c = inForce(d.options.config, d.agent.View().Config.Config, c)
	if err := d.agent.Reconfigure(ctx, c); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	d.options.lines.configure(c.LogLevel, d.options.verbose)
	if c.DRA.Ending {
		d.log.Warn("dra.enabled: nothing is published for claims any more; the next start ends their driver")
		keys = slices.DeleteFunc(keys, func(key string) bool { return key == "dra.enabled" })
	}
	if !c.NodeResourceTopology { // the object is deleted at once
		keys = slices.DeleteFunc(keys, func(key string) bool { return key == "nodeResourceTopology" })
	}
	if len(keys) > 0 {
		d.log.WithField("keys", strings.Join(keys, ", ")).Warn("these keys are taken at the start of the plugin only: what it was started with stays in force")
	}
	return nil
}

// inForce is a configuration that follows another one in a daemon that was started with a third: services stay, which a start makes.
func inForce(started, before, c config.Config) config.Config {
	if started.DRA.Enabled && !c.DRA.Enabled {
		c.DRA = before.DRA // what claims have of the nodes
		c.DRA.Ending = true
	}
	c.DRA.Enabled = started.DRA.Enabled && c.MemoryManagerPolicy != config.MemoryManagerNone // which has no place for claims
	c.FailurePolicy = started.FailurePolicy
	return c
}
