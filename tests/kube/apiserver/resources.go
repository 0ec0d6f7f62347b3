package main

import (
	"fmt"
	"strconv"

	batch "k8s.io/api/batch/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	scheduling "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

// resource is a type of the API with what pkg/registry/*/strategy.go of Kubernetes says of it, as far as the libraries
// need to be told.
type resource struct {
	name, singular string
	short          []string
	object, list   runtime.Object
	validName      validation.ValidateNameFunc
	// selectable are the field labels besides metadata.name and metadata.namespace.
	selectable []string

	clusterWide, status bool
	generation          bool // counts changes of the spec
	createOnUpdate      bool // PUT creates
	needsVersion        bool // PUT without a resourceVersion is refused
	orphansByDefault    bool // deletion leaves the dependents unless told otherwise
	returnsDeleted      bool // deletion answers with the object instead of a Status
}

var subdomain, label = validation.NameIsDNSSubdomain, validation.NameIsDNSLabel

var resources = map[schema.GroupVersion][]resource{
	core.SchemeGroupVersion: {
		{name: "namespaces", singular: "namespace", short: []string{"ns"}, object: &core.Namespace{},
			list: &core.NamespaceList{}, validName: label, returnsDeleted: true, clusterWide: true, status: true,
			selectable: []string{"status.phase", "name"}},
		{name: "nodes", singular: "node", short: []string{"no"}, object: &core.Node{}, list: &core.NodeList{},
			validName: subdomain, clusterWide: true, status: true, selectable: []string{"spec.unschedulable"}},
		{name: "pods", singular: "pod", short: []string{"po"}, object: &core.Pod{}, list: &core.PodList{},
			validName: subdomain, returnsDeleted: true, status: true, generation: true, selectable: []string{
				"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
				"status.phase", "status.podIP", "status.nominatedNodeName"}},
		{name: "services", singular: "service", short: []string{"svc"}, object: &core.Service{},
			list: &core.ServiceList{}, validName: validation.NameIsDNS1035Label,
			returnsDeleted: true, status: true, createOnUpdate: true,
			selectable: []string{"spec.clusterIP", "spec.type"}},
		{name: "configmaps", singular: "configmap", short: []string{"cm"}, object: &core.ConfigMap{},
			list: &core.ConfigMapList{}, validName: subdomain},
		{name: "secrets", singular: "secret", object: &core.Secret{}, list: &core.SecretList{}, validName: subdomain,
			selectable: []string{"type"}},
		{name: "serviceaccounts", singular: "serviceaccount", short: []string{"sa"}, object: &core.ServiceAccount{},
			list: &core.ServiceAccountList{}, validName: subdomain, returnsDeleted: true},
		{name: "persistentvolumeclaims", singular: "persistentvolumeclaim", short: []string{"pvc"},
			object: &core.PersistentVolumeClaim{}, list: &core.PersistentVolumeClaimList{}, validName: subdomain,
			status: true, returnsDeleted: true},
		{name: "resourcequotas", singular: "resourcequota", short: []string{"quota"}, object: &core.ResourceQuota{},
			list: &core.ResourceQuotaList{}, validName: subdomain, status: true, returnsDeleted: true},
		{name: "events", singular: "event", short: []string{"ev"}, object: &core.Event{}, list: &core.EventList{},
			validName: subdomain, createOnUpdate: true, selectable: []string{
				"involvedObject.kind", "involvedObject.name", "involvedObject.namespace", "involvedObject.uid", "reason", "type"}},
	},
	batch.SchemeGroupVersion: {
		{name: "jobs", singular: "job", object: &batch.Job{}, list: &batch.JobList{}, validName: subdomain, status: true,
			generation: true, orphansByDefault: true, selectable: []string{"status.successful"}},
	},
	coordination.SchemeGroupVersion: {
		{name: "leases", singular: "lease", object: &coordination.Lease{}, list: &coordination.LeaseList{},
			validName: subdomain, createOnUpdate: true, needsVersion: true},
	},
	scheduling.SchemeGroupVersion: {
		{name: "priorityclasses", singular: "priorityclass", short: []string{"pc"}, object: &scheduling.PriorityClass{},
			list: &scheduling.PriorityClassList{}, validName: subdomain, clusterWide: true, generation: true},
	},
}

func init() {
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	for version, all := range resources {
		internal := schema.GroupVersion{Group: version.Group, Version: runtime.APIVersionInternal}
		for _, r := range all {
			// The versioned types are the internal ones too: there is one version and nothing to convert.
			scheme.AddKnownTypes(version, r.object, r.list)
			scheme.AddKnownTypes(internal, r.object, r.list)
		}
		metav1.AddToGroupVersion(scheme, version)
		utilruntime.Must(scheme.SetVersionPriority(version))
		for _, r := range all {
			kinds, _, err := scheme.ObjectKinds(r.object)
			utilruntime.Must(err)
			utilruntime.Must(scheme.AddFieldLabelConversionFunc(version.WithKind(kinds[0].Kind), r.fieldLabel))
		}
	}
}

// fieldLabel refuses selectors by fields that the type cannot be selected by.
func (r resource) fieldLabel(name, value string) (string, string, error) {
	for _, known := range append([]string{"metadata.name", "metadata.namespace"}, r.selectable...) {
		if name == known {
			return name, value, nil
		}
	}
	return "", "", fmt.Errorf("field label not supported: %s", name)
}

// attributes are the labels and fields that selectors match.
func attributes(object runtime.Object) (labels.Set, fields.Set, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, err
	}
	f := fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
	switch o := object.(type) {
	case *core.Namespace:
		f["status.phase"], f["name"] = string(o.Status.Phase), o.Name
	case *core.Node:
		f["spec.unschedulable"] = strconv.FormatBool(o.Spec.Unschedulable)
	case *core.Pod:
		f["spec.nodeName"], f["spec.restartPolicy"] = o.Spec.NodeName, string(o.Spec.RestartPolicy)
		f["spec.schedulerName"], f["spec.serviceAccountName"] = o.Spec.SchedulerName, o.Spec.ServiceAccountName
		f["spec.hostNetwork"], f["status.phase"] = strconv.FormatBool(o.Spec.HostNetwork), string(o.Status.Phase)
		f["status.podIP"], f["status.nominatedNodeName"] = o.Status.PodIP, o.Status.NominatedNodeName
	case *core.Service:
		f["spec.clusterIP"], f["spec.type"] = o.Spec.ClusterIP, string(o.Spec.Type)
	case *core.Secret:
		f["type"] = string(o.Type)
	case *core.Event:
		about := o.InvolvedObject
		f["involvedObject.kind"], f["involvedObject.name"] = about.Kind, about.Name
		f["involvedObject.namespace"], f["involvedObject.uid"] = about.Namespace, string(about.UID)
		f["reason"], f["type"] = o.Reason, o.Type
	case *batch.Job:
		f["status.successful"] = strconv.Itoa(int(o.Status.Succeeded))
	}
	return m.GetLabels(), f, nil
}
