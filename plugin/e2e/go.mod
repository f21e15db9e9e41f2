module github.com/nri-memory-manager/nri-memory-manager/plugin/e2e

go 1.26.0

replace github.com/nri-memory-manager/nri-memory-manager => ../..

require (
	github.com/ulikunitz/xz v0.5.17
	golang.org/x/sys v0.49.0
)
