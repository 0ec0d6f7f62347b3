// A Kubernetes API server for tests: the machinery of k8s.io/apiserver and k8s.io/apiextensions-apiserver over etcd,
// with the core types that Bastion uses and any CustomResourceDefinition. What it lacks, because Debian does not
// package it: core defaulting and validation, admission, garbage collection, namespace deletion, RBAC, webhooks, the
// subresources of pods.
package main

import (
	"flag"
	"net"
	"net/http"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/server"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/compatibility"

	generated "bastion.test/openapi"
)

// Kubernetes' release, such as 1.36.4; set by the build.
var release string

type settings struct {
	etcd, certificate, key, tokens string
	port                           int
}

func main() {
	var s settings
	flag.StringVar(&s.etcd, "etcd", "", "etcd's URL")
	flag.IntVar(&s.port, "port", 0, "the port on 127.0.0.1")
	flag.StringVar(&s.certificate, "certificate", "", "PEM file of the server's certificate")
	flag.StringVar(&s.key, "key", "", "PEM file of its key")
	flag.StringVar(&s.tokens, "tokens", "", "CSV file of bearer tokens: token,user,uid,\"group,...\"")
	flag.Parse()

	generic := newServer(s)
	utilruntime.Must(generic.PrepareRun().RunWithContext(server.SetupSignalContext()))
}

// newServer assembles one server of custom resources, the core types and discovery.
func newServer(s settings) *server.GenericAPIServer {
	custom := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	utilruntime.Must(custom.Complete())
	etcd := custom.RecommendedOptions.Etcd
	etcd.StorageConfig.Transport.ServerList = []string{s.etcd}
	etcd.StorageConfig.Prefix = "/registry"

	config := server.NewRecommendedConfig(apiextensions.Codecs)
	config.EffectiveVersion = compatibility.NewEffectiveVersionFromString(release, "", "")
	utilruntime.Must(custom.ServerRunOptions.ApplyTo(&config.Config))
	utilruntime.Must(etcd.ApplyTo(&config.Config))
	utilruntime.Must(custom.APIEnablement.ApplyTo(
		&config.Config, apiextensions.DefaultAPIResourceConfigSource(), apiextensions.Scheme))
	serve(s, config)
	describe(config)

	extra := apiextensions.ExtraConfig{
		CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(*etcd, nil, config.StorageObjectCountTracker),
		MasterCount:          1,
	}
	crds, err := (&apiextensions.Config{GenericConfig: config, ExtraConfig: extra}).Complete().New(
		server.NewEmptyDelegate())
	utilruntime.Must(err)
	installCore(crds.GenericAPIServer, *etcd, config.EffectiveVersion)
	installGroupDiscovery(crds)
	return crds.GenericAPIServer
}

// serve sets TLS on loopback and bearer tokens; whoever has one may do everything.
func serve(s settings, config *server.RecommendedConfig) {
	serving := serveroptions.NewSecureServingOptions().WithLoopback()
	serving.BindAddress, serving.BindPort = net.ParseIP("127.0.0.1"), s.port
	serving.ServerCert.CertKey.CertFile, serving.ServerCert.CertKey.KeyFile = s.certificate, s.key
	utilruntime.Must(serving.ApplyTo(&config.SecureServing, &config.LoopbackClientConfig))
	tokens, err := tokenfile.NewCSV(s.tokens)
	utilruntime.Must(err)
	config.Authentication.Authenticator = bearertoken.New(tokens)
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
}

// describe sets the OpenAPI schemas, by which unknown fields are found, and mends the path that kubectl asks for.
func describe(config *server.RecommendedConfig) {
	schemas := utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generated.GetOpenAPIDefinitions)
	names := openapi.NewDefinitionNamer(scheme, apiextensions.Scheme, clientscheme.Scheme)
	config.OpenAPIConfig = server.DefaultOpenAPIConfig(schemas, names)
	config.OpenAPIV3Config = server.DefaultOpenAPIV3Config(schemas, names)
	config.BuildHandlerChainFunc = func(inner http.Handler, c *server.Config) http.Handler {
		chain := server.DefaultBuildHandlerChain(inner, c)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/version/" {
				r.URL.Path = "/version"
			}
			chain.ServeHTTP(w, r)
		})
	}
}
