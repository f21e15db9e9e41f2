package main

import (
	"context"
	"path/filepath"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims/dra"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// claimsDriver prepares the driver for resource claims. In a dry run there is none: nothing is to be published or prepared.
func (d *daemon) claimsDriver(sources *status.Sources) ([]part, error) {
	if d.options.config.DryRun() {
		d.log.Warn("dra: a dry run publishes and prepares nothing")
		return nil, nil
	}
	client, err := clientFor(&d.options.apiOptions, dra.NewClient)
	if err != nil {
		return nil, err
	}
	listener, err := d.options.outside.listen(filepath.Join(d.options.pluginRegistry, claims.Driver+".sock"))
	if err != nil {
		return nil, err
	}
	driver := dra.New(dra.Options{
		Client: client, Name: claims.Driver, Node: d.options.nodeName, CDI: d.options.cdi, Ledger: d.agent, Machine: d.options.machine, Log: d.log,
	})
	d.agent.OnUnreserved(driver.Reread)
	sources.Unmapped = driver.Unmapped
	return []part{func(ctx context.Context) error { return driver.Run(ctx, listener) }}, nil
}
