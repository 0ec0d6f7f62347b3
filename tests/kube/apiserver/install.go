package main

import (
	"context"
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/compatibility"
)

// installCore serves the types of `resources`, stored beside the custom ones.
func installCore(to *server.GenericAPIServer, etcd options.EtcdOptions, version compatibility.EffectiveVersion) {
	var versions []schema.GroupVersion
	for v := range resources {
		versions = append(versions, v)
	}
	stored := etcd.StorageConfig
	stored.Codec = codecs.LegacyCodec(versions...)
	stored.EncodeVersioner = nil
	config := server.NewRecommendedConfig(codecs)
	config.EffectiveVersion = version
	utilruntime.Must(options.NewEtcdOptions(&stored).ApplyTo(&config.Config))

	for v, all := range resources {
		group := server.NewDefaultAPIGroupInfo(v.Group, scheme, metav1.ParameterCodec, codecs)
		group.PrioritizedVersions = []schema.GroupVersion{v}
		storages := map[string]rest.Storage{}
		for _, r := range all {
			addStorage(storages, r, v, config.RESTOptionsGetter)
		}
		group.VersionedResourcesStorageMap[v.Version] = storages
		if v.Group == "" {
			utilruntime.Must(to.InstallLegacyAPIGroup(server.DefaultLegacyAPIPrefix, &group))
		} else {
			utilruntime.Must(to.InstallAPIGroup(&group))
		}
	}
}

func addStorage(to map[string]rest.Storage, r resource, v schema.GroupVersion, getter generic.RESTOptionsGetter) {
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, resource: r}
	plural := v.WithResource(r.name).GroupResource()
	store := &registry.Store{
		NewFunc:                   newOf(r.object),
		NewListFunc:               newOf(r.list),
		DefaultQualifiedResource:  plural,
		SingularQualifiedResource: v.WithResource(r.singular).GroupResource(),
		PredicateFunc: func(l labels.Selector, f fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: attributes}
		},
		CreateStrategy: s,
		UpdateStrategy: s,
		DeleteStrategy: deletionOf(s),
		TableConvertor: rest.NewDefaultTableConvertor(plural),

		ReturnDeletedObject: r.returnsDeleted,
	}
	utilruntime.Must(store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: attributes}))
	to[r.name] = &named{store, r.short}
	if r.status {
		ofStatus := *store
		s.ofStatus = true
		ofStatus.UpdateStrategy = s
		to[r.name+"/status"] = &statusOnly{&ofStatus}
	}
}

func newOf(example runtime.Object) func() runtime.Object {
	kind := reflect.TypeOf(example).Elem()
	return func() runtime.Object { return reflect.New(kind).Interface().(runtime.Object) }
}

// named is a store with the short names that kubectl knows the type by.
type named struct {
	*registry.Store
	short []string
}

func (n *named) ShortNames() []string { return n.short }

// statusOnly is the /status subresource: get, update and patch.
type statusOnly struct{ store *registry.Store }

func (s *statusOnly) New() runtime.Object { return s.store.New() }
func (s *statusOnly) Destroy()            {}

func (s *statusOnly) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, o)
}

func (s *statusOnly) Update(ctx context.Context, name string, object rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, object, create, update, false, o)
}

// installGroupDiscovery serves /apis, the aggregation layer's work in a whole Kubernetes, with the groups of the CRDs.
func installGroupDiscovery(crds *apiextensions.CustomResourceDefinitions) {
	generic := crds.GenericAPIServer
	handler := aggregated.WrapAggregatedDiscoveryToHandler(
		generic.DiscoveryGroupManager, generic.AggregatedDiscoveryGroupManager, generic.AggregatedDiscoveryGroupManager)
	generic.Handler.GoRestfulContainer.Add(handler.GenerateWebService(server.APIGroupPrefix, metav1.APIGroupList{}))
	informer := crds.Informers.Apiextensions().V1().CustomResourceDefinitions()
	announce := func(changed interface{}) {
		if crd, ok := changed.(*apiextensionsv1.CustomResourceDefinition); ok {
			generic.DiscoveryGroupManager.AddGroup(groupOf(crd))
		}
	}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: announce, UpdateFunc: func(_, changed interface{}) { announce(changed) },
	})
	utilruntime.Must(err)
}

// groupOf tells the group of a CRD as if it were its only one: true of JobSet, and of one version's groups.
func groupOf(crd *apiextensionsv1.CustomResourceDefinition) metav1.APIGroup {
	group := metav1.APIGroup{Name: crd.Spec.Group}
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		found := metav1.GroupVersionForDiscovery{GroupVersion: crd.Spec.Group + "/" + v.Name, Version: v.Name}
		group.Versions = append(group.Versions, found)
		if v.Storage || group.PreferredVersion.Version == "" {
			group.PreferredVersion = found
		}
	}
	return group
}
