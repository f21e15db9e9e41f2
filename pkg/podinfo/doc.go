// Package podinfo asks the kubelet's pod API and the API server what memory a pod asks for: the runtime's events carry limits
// but not requests. The best source that answers is believed.
package podinfo
