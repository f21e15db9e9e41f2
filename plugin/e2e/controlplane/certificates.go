package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Identity is a certificate with its key, both PEM.
type Identity struct {
	Certificate, Key []byte
}

// subject says whose certificate is issued, and for which addresses it serves (none: a client's only).
type subject struct {
	name, group string
	addresses   []string
	hosts       []string
}

// authority issues the cluster's certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
	serial      int64
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the CA's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "e2e"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 30),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create the CA: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("create the CA: %w", err)
	}
	return &authority{certificate: certificate, key: key, serial: 1, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// issue returns a certificate that serves as client and, for its addresses, as server.
func (a *authority) issue(of subject) (Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Identity{}, fmt.Errorf("generate the key of %s: %w", of.name, err)
	}
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: of.name}, DNSNames: of.hosts,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 30),
	}
	if of.group != "" {
		template.Subject.Organization = []string{of.group}
	}
	for _, address := range of.addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return Identity{}, fmt.Errorf("issue the certificate of %s: %w", of.name, err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Identity{}, fmt.Errorf("issue the certificate of %s: %w", of.name, err)
	}
	return Identity{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}),
	}, nil
}

// kubeconfig is a client's configuration with everything in the one file.
func (a *authority) kubeconfig(server string, of subject) ([]byte, error) {
	id, err := a.issue(of)
	if err != nil {
		return nil, err
	}
	const name = "e2e"
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server, CertificateAuthorityData: a.pem}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificateData: id.Certificate, ClientKeyData: id.Key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, fmt.Errorf("write the kubeconfig of %s: %w", of.name, err)
	}
	return text, nil
}

// serviceAccountKey is what tokens are signed with, PEM.
func serviceAccountKey() ([]byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("generate the key of service accounts: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), nil
}

// files writes the files of the control plane's processes into dir.
func (a *authority) files(dir, server string) error {
	all := map[string][]byte{"ca.crt": a.pem}
	var err error
	if all["sa.key"], err = serviceAccountKey(); err != nil {
		return err
	}
	for name, of := range map[string]subject{
		"apiserver":      {name: "kube-apiserver", addresses: []string{loopback, HostSeenByGuests, setup.ServiceAddress}, hosts: []string{"localhost", "kubernetes.default.svc"}},
		"kubelet-client": {name: "kube-apiserver-kubelet-client", group: administrators},
	} {
		id, err := a.issue(of)
		if err != nil {
			return err
		}
		all[name+".crt"], all[name+".key"] = id.Certificate, id.Key
	}
	for name, of := range map[string]subject{
		"scheduler.conf":          {name: "system:kube-scheduler"},
		"controller-manager.conf": {name: "system:kube-controller-manager"},
		"admin.conf":              {name: "admin", group: administrators},
	} {
		if all[name], err = a.kubeconfig(server, of); err != nil {
			return err
		}
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return fmt.Errorf("write the control plane's files: %w", err)
		}
	}
	return nil
}
